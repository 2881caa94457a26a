// Streams: kernels and copies over time, and what runs at the cursor.
const LANES = { compute: "compute", to_host: "to the host", to_device: "to the device", collective: "collectives" };
let side = data.streams.after ? "after" : "before";
const lanesOf = (streams) => Object.keys(LANES).filter((lane) => streams.lanes[lane]);

function drawStreams(plot, bottom) {
  const streams = data.streams[side];
  const lanes = lanesOf(streams), height = (bottom - 12) / lanes.length;
  const defs = plot.add("defs", {});
  const hatch = defs.appendChild(element("pattern", { id: "wait", width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }));
  hatch.append(element("path", { d: "M0 0V5" }));
  lanes.forEach((lane, at) => {
    const y = 12 + at * height, inner = height - 8;
    plot.add("rect", { class: "lane", x: plot.left, y, width: plot.right - plot.left, height: inner, rx: 3 });
    plot.add("text", { x: plot.left - 8, y: y + inner / 2 + 4, "text-anchor": "end" }, plot.width < 560 ? LANES[lane].replace("the ", "") : LANES[lane]);
    for (const [kind, a, b] of mergeSlices(plot, streams.lanes[lane], lane)) {
      plot.add("rect", { class: kind, x: a.toFixed(2), y, width: Math.max(0.5, b - a).toFixed(2), height: inner });
    }
  });
}
/** Slices in view. Neighbours of one kind are drawn as one, and so is what shares a pixel. */
function* mergeSlices(plot, slices, lane) {
  let run = null;
  const from = Math.max(0, findLast(slices.starts, view.from) - 1);
  for (let k = from; k < slices.starts.length && slices.starts[k] <= view.to; k++) {
    const kind = lane === "compute" ? data.phases[slices.phases[k]] : lane;
    const a = Math.max(plot.left, plot.x(slices.starts[k]));
    const b = Math.min(plot.right, plot.x(slices.starts[k] + slices.durations[k]));
    if (b < plot.left) continue;
    if (run && a - run.right < 0.5 && (kind === run.kind || b - run.left < 1)) {
      if (b - a > run.longest) [run.kind, run.longest] = [kind, b - a];
      run.right = Math.max(run.right, b);
      continue;
    }
    if (run) yield [run.kind, run.left, run.right];
    if (run && lane === "compute" && a - run.right >= 1) yield ["waiting", run.right, a];
    run = { kind, left: a, right: b, longest: b - a };
  }
  if (run) yield [run.kind, run.left, run.right];
}
function readStreams(t) {
  const box = byId("slice");
  if (!box) return;
  if (t === null) { box.textContent = box.dataset.hint; return; }
  const streams = data.streams[side];
  const said = lanesOf(streams).map((lane) => {
    const s = streams.lanes[lane], k = findLast(s.starts, t);
    const runs = s.starts.length && s.starts[k] <= t && t <= s.starts[k] + s.durations[k];
    if (!runs) return `${LANES[lane]}: ${lane === "compute" ? "waiting" : "idle"}`;
    const source = words[s.sources[k]];
    return `${LANES[lane]}: ${words[s.labels[k]]}, ${formatSeconds(s.durations[k])}, ${formatBytes(s.sizes[k])}${source ? " · " + source : ""}`;
  });
  box.textContent = `At ${formatSeconds(t)} (${streams.how}): ${said.join(" — ")}`;
}
