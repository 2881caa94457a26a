"""The benchmark's page: what do the cells add up to?

Input: the results of the panels that have any. Output: Markdown and figures, printed, or put
between the markers of docs/benchmarks.md.
The one convention: what is not known is shown as such (not run, timeout, infeasible, over the
budget), and counts for nobody.
"""

import pathlib
from collections.abc import Iterable, Sequence

from benchmarks.bench_results import BudgetCell, PanelResults, Row, geometric_mean, load_panel
from benchmarks.panels import Panel
from benchmarks.pareto import draw_pareto

FIGURES = pathlib.Path("docs") / "benchmarks"
_MADE_BY = "made by `python -m benchmarks.bench --write`"
BEGIN, END = f"<!-- {_MADE_BY}: begin -->", f"<!-- {_MADE_BY}: end -->"


def load_panels(
    models: Sequence[str], devices: Sequence[str], shares: Sequence[float]
) -> list[PanelResults]:
    """Those of the panels asked for that have results."""
    panels = (Panel(model=model, device=device) for model in models for device in devices)
    loaded = (load_panel(panel, shares) for panel in panels)
    return [results for results in loaded if results is not None]


def print_page(models: Sequence[str], devices: Sequence[str], shares: Sequence[float]) -> None:
    """Prints the tables."""
    print(make_page(load_panels(models, devices, shares), shares))


def write_page(
    models: Sequence[str],
    devices: Sequence[str],
    shares: Sequence[float],
    doc: pathlib.Path,
) -> None:
    """Writes the tables into a page of docs/, and the figures into docs/benchmarks."""
    panels = load_panels(models, devices, shares)
    FIGURES.mkdir(parents=True, exist_ok=True)
    for results in panels:
        (FIGURES / _figure_name(results)).write_text(draw_pareto(results))
    text = doc.read_text() if doc.exists() else f"# Benchmarks\n\n{BEGIN}\n{END}\n"
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    page = make_page(panels, shares, figures=True)
    doc.write_text(f"{before}{BEGIN}\n\n{page}\n{END}{after}")


def make_page(
    panels: Sequence[PanelResults], shares: Sequence[float], *, figures: bool = False
) -> str:
    """All of it as Markdown."""
    if not panels:
        return "No results yet: `python -m benchmarks.bench` runs the benchmark.\n"
    parts = [make_summary(panels, shares)]
    for results in panels:
        parts.append(f"## {results.panel.model} on {results.panel.device}\n")
        if figures:
            name = f"{results.panel.model} on {results.panel.device}"
            parts.append(f"![{name}]({FIGURES.name}/{_figure_name(results)})\n")
        parts.append(make_budget_table(results, shares))
        parts.append(make_contender_table(results))
        parts.append(make_budgeted_table(results, shares))
    return "\n".join(part for part in parts if part)


def _figure_name(results: PanelResults) -> str:
    return f"{results.panel.model}-{results.panel.device}.svg"


def make_summary(panels: Sequence[PanelResults], shares: Sequence[float]) -> str:
    """What all cells add up to, and where jaxswap loses."""
    cells = [(results, results.compare(share)) for results in panels for share in shares]
    run = [cell for _, cell in cells if cell.own is not None]
    lines = ["## Summary\n"]
    if not run:
        lines.append("- jaxswap was not run: the tables show the others.")
    else:
        left, hopeless = len(cells) - len(run), sum(_is_hopeless(cell) for cell in run)
        beaten = sum(len(results.find_dominated()) for results in panels)
        lines += [
            f"- Within the budget, as compiled: {sum(c.is_within for c in run)} of {len(run)} "
            f"cells; {hopeless} are infeasible and no policy fits them either ({left} cells of the "
            "grid were not run).",
            *_compare_times(run, widest=max(shares)),
            f"- Plans that another contender beats in both bytes and time: {beaten}.",
        ]
    lines += _list_losses(cells)
    older = [row for r in panels for row in r.rows if row.result.get("is_older")]
    if older:
        lines.append(f"- {len(older)} results are of older sources: run the benchmark again.")
    return "\n".join(lines) + "\n"


def _compare_times(run: Sequence[BudgetCell], *, widest: float) -> list[str]:
    """Against the policies, and against the unconstrained step."""
    against = [cell for cell in run if cell.policy is not None]
    ratios = [cell.speed_up for cell in against if cell.speed_up is not None]
    slow = [c.slowdown for c in run if c.share == widest and c.is_within and c.slowdown]
    ahead = sum(ratio >= 1 for ratio in ratios)
    lines = [
        f"- No slower than the fastest policy that fits: {ahead} of {len(against)} cells where "
        "one fits."
    ]
    if ratios:
        lines.append(
            f"- Speed over that policy, geometric mean of {len(ratios)} cells: "
            f"{geometric_mean(ratios):.3f}x."
        )
    if slow:
        lines.append(
            f"- At {widest:.0%} of the bytes, the step over the unconstrained one: geometric mean "
            f"{geometric_mean(slow) - 1:+.1%}, worst {max(slow) - 1:+.1%}."
        )
    return lines


def _is_hopeless(cell: BudgetCell) -> bool:
    infeasible = cell.own is not None and cell.own.result["status"] == "infeasible"
    return infeasible and cell.policy is None


def _list_losses(cells: Iterable[tuple[PanelResults, BudgetCell]]) -> list[str]:
    lines = []
    for results, cell in cells:
        where = f"{results.panel.model} on {results.panel.device} at {cell.share:.0%}"
        if cell.own is None or (cell.is_within and (cell.speed_up or 1) >= 1):
            continue
        if not cell.is_within:
            policy = f"`{cell.policy.name}` fits" if cell.policy else "no policy fits either"
            lines.append(f"  - {where}: {_describe(cell.own, cell.budget_bytes)}; {policy}.")
        elif cell.policy:
            lines.append(
                f"  - {where}: `{cell.policy.name}` is faster, {1e3 * cell.policy.step_s:.1f} "
                f"against {1e3 * cell.own.step_s:.1f} ms."
            )
    return ["- Where jaxswap loses, or has no answer:", *lines] if lines else []


def make_budget_table(results: PanelResults, shares: Sequence[float]) -> str:
    """Puts jaxswap against the fastest policy that fits, budget by budget."""
    headings = ("budget", "GB", "jaxswap GB", "ms", "of unconstrained", "fastest policy that fits",
                "its GB", "its ms", "speed over it")  # fmt: skip
    rows = []
    for share in shares:
        cell = results.compare(share)
        own, policy = cell.own, cell.policy
        rows.append((
            f"{share:.0%}",
            f"{cell.budget_bytes / 1e9:.2f}",
            _bytes_of(own, cell.budget_bytes),
            _millis_of(own),
            f"{cell.slowdown:.3f}x" if cell.slowdown else "",
            f"`{policy.name}`" if policy else "none",
            f"{policy.device_bytes / 1e9:.2f}" if policy else "",
            _millis_of(policy) if policy else "",
            f"{cell.speed_up:.3f}x" if cell.speed_up else "",
        ))  # fmt: skip
    return _table(headings, rows)


def make_contender_table(results: PanelResults) -> str:
    """Those without a budget, from the largest to the smallest."""
    rows = [row for row in results.rows if row.share is None]
    ok = sorted((row for row in rows if row.is_ok), key=lambda row: -row.device_bytes)
    cells = []
    for row in ok:
        figures = row.result["figures"]
        cells.append((
            f"`{row.name}`",
            f"{row.device_bytes / 1e9:.2f}",
            f"{figures['host_bytes'] / 1e9:.2f}",
            f"{1e3 * row.step_s:.1f}",
            f"{1e3 * figures['stall_s']:.1f}",
        ))  # fmt: skip
    cells += [(f"`{row.name}`", _describe(row), "", "", "") for row in rows if not row.is_ok]
    return _table(("without a budget", "device GB", "host GB", "ms", "of it stalls"), cells)


def make_budgeted_table(results: PanelResults, shares: Sequence[float]) -> str:
    """Those with a budget: bytes and time at each."""
    rows = [row for row in results.rows if row.share is not None]
    names = list(dict.fromkeys(row.name for row in rows))
    if not names:
        return ""
    by_cell = {(row.name, row.share): row for row in rows}
    cells = [
        (f"`{name}`", *(_pair(by_cell.get((name, s)), results.budget_bytes(s)) for s in shares))
        for name in names
    ]
    budgets = (f"{s:.0%}: {results.budget_bytes(s) / 1e9:.2f} GB" for s in shares)
    return _table(("GB and ms within a budget of", *budgets), cells)


def _pair(row: Row | None, budget_bytes: int) -> str:
    if row is None or not row.is_ok:
        return _describe(row, budget_bytes)
    return f"{_bytes_of(row, budget_bytes)}, {_millis_of(row)}"


def _bytes_of(row: Row | None, budget_bytes: int) -> str:
    if row is None or not row.is_ok:
        return _describe(row, budget_bytes)
    over = "" if row.is_within(budget_bytes) else " (over)"
    return f"{row.device_bytes / 1e9:.2f}{over}"


def _millis_of(row: Row | None) -> str:
    return f"{1e3 * row.step_s:.1f}" if row is not None and row.is_ok else ""


def _describe(row: Row | None, budget_bytes: int = 0) -> str:
    """What became of a row that has no figures, or too many bytes."""
    if row is None:
        return "not run"
    if row.is_ok:
        over = row.device_bytes / budget_bytes - 1 if budget_bytes else 0.0
        return f"{over:.1%} over the budget"
    floor = row.result.get("floor_bytes")
    return f"infeasible (floor {floor / 1e9:.2f})" if floor else row.result["status"]


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
