// Words and numbers: the data, and how bytes, seconds and ticks are written. The scripts of
// this folder run as one, in the order of `html.py`. Text goes into the page as text, never as
// markup.
const data = JSON.parse(document.getElementById("data").textContent);
const words = data.strings;
const byId = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

const UNITS = [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]];
function formatBytes(n) {
  for (const [unit, size] of UNITS) if (Math.abs(n) >= size) return (n / size).toFixed(2) + " " + unit;
  return Math.round(n) + " B";
}
function formatSeconds(s) {
  if (s === null) return "–";
  for (const [unit, size] of [["s", 1], ["ms", 1e-3], ["µs", 1e-6]]) {
    if (Math.abs(s) >= size) return Number((s / size).toPrecision(3)) + " " + unit;
  }
  return s ? Number((s / 1e-6).toPrecision(2)) + " µs" : "0 s";
}
function ticks(low, high, count) {
  if (!(high > low)) return [low];
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((k) => k * power).find((s) => s >= rough * 0.999);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k <= Math.floor(high / step + 1e-9); k++) found.push(k * step);
  return found;
}
function element(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const key in attributes) made.setAttribute(key, attributes[key]);
  if (text !== undefined) made.textContent = text;
  return made;
}
function html(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}
