// Start: puts everything on the page and listens to its buttons.
if (byId("memory-plot")) {
  const plot = new Plot(byId("memory-plot"), 340, drawMemory);
  plot.onfollow = (t) => curves.forEach(([, curve], k) => {
    const dot = plot.dots[k], shown = t !== null && t <= curve.step_s;
    dot.setAttribute("visibility", shown ? "visible" : "hidden");
    if (shown) { dot.setAttribute("cx", plot.x(t)); dot.setAttribute("cy", plot.y(curve.bytes[findLast(curve.starts, t)])); }
  });
}
if (byId("streams-plot")) new Plot(byId("streams-plot"), 40 + 58 * Math.max(...Object.values(data.streams).filter(Boolean).map((s) => lanesOf(s).length)), drawStreams);
document.querySelectorAll("[data-side]").forEach((button) => button.addEventListener("click", () => {
  side = button.dataset.side;
  document.querySelectorAll("[data-side]").forEach((b) => b.setAttribute("aria-pressed", String(b === button)));
  zoom(view.from, view.to);
}));
document.querySelectorAll("[data-zoom]").forEach((button) => button.addEventListener("click", () => {
  const factor = Number(button.dataset.zoom);
  const middle = cursor ?? (view.from + view.to) / 2, half = (view.to - view.from) / 2 * factor;
  if (factor) zoom(middle - half, middle + half); else zoom(0, end);
}));
if (byId("rows")) startDecisions();
zoom(0, end);
let pending = 0;
const redraw = () => { cancelAnimationFrame(pending); pending = requestAnimationFrame(() => zoom(view.from, view.to)); };
window.addEventListener("resize", redraw);
window.addEventListener("beforeprint", () => zoom(0, end));
document.documentElement.dataset.ready = "yes";
