// Decisions: the table, sorted and filtered.
const COLUMNS = [
  ["decision", (r) => r.action], ["where", (r) => r.label], ["what", (r) => r.what, "hide-small"],
  ["bytes", (r) => r.size_bytes, "n"], ["seconds", (r) => r.seconds ?? -1, "n"],
  ["window", (r) => r.window_ops, "n hide-small"], ["ahead", (r) => r.reload_ahead_ops, "n hide-small"],
  ["source", (r) => r.source, "src hide-small"],
];
const PAGE = 100;
const rows = data.decisions.map((row) => Object.fromEntries(row.map((value, k) => [data.decision_fields[k], value])));
for (const row of rows) row.text = [row.name, row.label, row.what, row.source, row.action].join(" ").toLowerCase();
const table = { column: null, down: false, shown: PAGE, action: "" };

function renderDecisions() {
  const wanted = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  let chosen = rows.filter((row) => (!table.action || row.action === table.action) && wanted.every((w) => row.text.includes(w)));
  if (table.column !== null) {
    const key = COLUMNS[table.column][1], sign = table.down ? -1 : 1;
    chosen = chosen.slice().sort((a, b) => sign * (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0));
  }
  const body = byId("rows");
  body.replaceChildren(...chosen.slice(0, table.shown).map(renderRow));
  const total = chosen.reduce((sum, row) => sum + row.size_bytes, 0);
  byId("count").textContent = `${chosen.length} of ${rows.length} values, ${formatBytes(total)}`;
  byId("more").hidden = chosen.length <= table.shown;
  byId("head").querySelectorAll("th").forEach((th, k) =>
    th.setAttribute("aria-sort", k !== table.column ? "none" : table.down ? "descending" : "ascending"));
}
function renderRow(row) {
  const tr = html("tr");
  const cells = [null, row.label || row.name, row.what, formatBytes(row.size_bytes),
    row.action === "keep" ? "" : formatSeconds(row.seconds), row.window_ops || "", row.window_ops ? row.reload_ahead_ops : "", row.source];
  cells.forEach((text, k) => {
    const td = tr.appendChild(html("td", COLUMNS[k][2] ?? ""));
    if (k === 0) td.append(html("span", "tag " + row.action, row.action + (row.stays ? " (stays)" : "")));
    else td.textContent = text;
    if (k === 1) td.title = row.name;
  });
  return tr;
}
function startDecisions() {
  COLUMNS.forEach(([name, , className], k) => {
    const th = byId("head").appendChild(html("th", className ?? ""));
    th.scope = "col";
    const button = th.appendChild(html("button", "", name));
    button.addEventListener("click", () => {
      const number = ["bytes", "seconds", "window", "ahead"].includes(name);
      table.down = table.column === k ? !table.down : number;
      table.column = k;
      renderDecisions();
    });
  });
  byId("filter").addEventListener("input", () => { table.shown = PAGE; renderDecisions(); });
  byId("more").addEventListener("click", () => { table.shown += 10 * PAGE; renderDecisions(); });
  document.querySelectorAll("[data-action]").forEach((button) => button.addEventListener("click", () => {
    table.action = button.dataset.action; table.shown = PAGE;
    document.querySelectorAll("[data-action]").forEach((b) => b.setAttribute("aria-pressed", String(b === button)));
    renderDecisions();
  }));
  renderDecisions();
}
