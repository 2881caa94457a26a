"""Every planner passes one suite: its plans are possible, fit, repeat, and are monotone."""

import dataclasses
import itertools
import random

import hypothesis as hp
import hypothesis.strategies as hps
import numpy as np
import programs
import pytest
import scipy.optimize

from jaxswap._errors import BadArgumentError, BudgetInfeasibleError
from jaxswap.apply.decision import Decision
from jaxswap.model.simulate import simulate
from jaxswap.plan import base, breed, exact, genetic, improve, linear
from jaxswap.plan.milp import solve_relaxed
from jaxswap.plan.problem import KEEP_GENE, Problem
from jaxswap.program import liveness

PLANNERS = sorted(base.planners())
SMALL = genetic.Genetic(population=24, num_generations=6, patience=3, max_op_evaluations=2e5)


def settings_of(name):
    """The planner, small enough for a test."""
    return SMALL if name == "genetic" else base.find_planner(name)


def make_problem(program, share, *, device=programs.UNIT, **more):
    """A budget part of the way from the floor to the unplanned peak."""
    free = Problem(program=program, device=device, budget_bytes=10**9, efficiency=programs.EXACT)
    floor, top = improve.find_floor(free).peak_bytes, free.baseline.peak_bytes
    budget = floor + int(share * (top - floor))
    return dataclasses.replace(free, budget_bytes=budget, **more)


def check_plan(program, decisions):
    """The peak by definition: at each op, the sizes of what has to be there. No loops.

    Written from the words of the plan alone: walks the candidates from the last to the first,
    finds what each op needs, and counts heavy ops by looking at them.
    """
    ops = program.ops
    heavy = lambda first, end: sum(op.is_heavy for op in ops[first:end])
    needs = {c: {cand.first_backward} for c, cand in enumerate(program.candidates)}
    present = [program.base_bytes + op.scratch_bytes for op in ops]
    decided = {cand.value for cand in program.candidates}
    is_planned = any(decision.action != "keep" for decision in decisions.values())
    for v, value in enumerate(program.values):
        if v not in decided:
            readers = value.readers
            if value.is_implicit and is_planned:
                readers = [t for t in readers if ops[t].phase == "forward"]
            for t in range(value.producer, max(value.producer, *readers, 0) + 1):
                present[t] += value.size_bytes
    again_bytes = [0] * len(ops)
    for c in reversed(range(len(program.candidates))):
        cand = program.candidates[c]
        value = program.values[cand.value]
        decision = decisions.get(value.name, Decision(action="keep"))
        first, last = min(needs[c]), max(*needs[c], *value.readers)
        gone = set()
        if decision.action == "recompute" and heavy(cand.last_forward + 1, first) > 0:
            gone = set(range(cand.last_forward + 1, first))
            again_bytes[first] = max(again_bytes[first], cand.recompute_bytes)
            for parent in cand.parents:
                needs[parent].add(first)
        if decision.action == "offload":
            left = back = None
            for t in range(value.producer + 1, first):
                if ops[t].is_heavy and heavy(value.producer + 1, t) == decision.window_ops - 1:
                    left = max(t, cand.last_forward + 1)
            back = first
            if decision.reload_ahead_ops:
                turns = [t for t in range(first) if ops[t].is_heavy]
                at = len(turns) - decision.reload_ahead_ops
                back = -1 if at < 0 else turns[at - 1] + 1 if at else 0
            if left is not None and heavy(left, back) > 0:
                gone = set(range(left, back))
        for t in range(value.producer, last + 1):
            present[t] += value.size_bytes * (t not in gone)
    return [
        p - op.scratch_bytes + (max(op.scratch_bytes, again) if again else op.scratch_bytes)
        for p, op, again in zip(present, ops, again_bytes, strict=True)
    ]


@hps.composite
def decided_programs(draw):
    program = draw(programs.programs(with_loops=False))
    names = program.candidate_names
    decision = hps.builds(
        Decision,
        action=hps.sampled_from(["keep", "offload", "recompute"]),
        window_ops=hps.integers(1, 3),
        reload_ahead_ops=hps.integers(0, 3),
    )
    possible = {}
    for name, cand in zip(names, program.candidates, strict=True):
        chosen = draw(decision)
        cannot = chosen.action == "offload" and not cand.can_offload
        cannot |= chosen.action == "recompute" and cand.recompute is None
        possible[name] = Decision(action="keep") if cannot else chosen
    return program, possible


@hp.given(decided_programs())
def test_the_simulated_curve_is_what_the_definitions_give(drawn):
    program, decisions = drawn
    forecast = simulate(program, decisions, programs.UNIT, efficiency=programs.EXACT)
    assert list(forecast.bytes_at) == check_plan(program, decisions)


@pytest.mark.parametrize("name", PLANNERS)
@pytest.mark.parametrize("share", [0.7, 0.2])
def test_a_plan_fits_and_is_what_it_says(name, share):
    problem = make_problem(programs.blocks(5), share)
    solution = settings_of(name).solve(problem, np.random.default_rng(0), None)
    if not solution.forecast.fits(problem.budget_bytes):
        assert name not in ("genetic", "exact", "greedy", "autotm")
        with pytest.raises(BudgetInfeasibleError, match=f"`{name}`"):
            base.run_planner(problem, name)
        return
    assert max(check_plan(problem.program, solution.decisions)) <= problem.budget_bytes
    again = simulate(problem.program, solution.decisions, problem.device, efficiency=programs.EXACT)
    assert again == solution.forecast
    assert solution.forecast.step_s >= problem.baseline.step_s
    assert solution.planner == name
    if solution.bound_s is not None:
        assert solution.bound_s <= solution.forecast.step_s * (1 + 1e-9)


@pytest.mark.parametrize("name", PLANNERS)
def test_equal_seeds_give_equal_plans(name):
    problem = make_problem(programs.blocks(4), 0.1)
    solve = lambda: settings_of(name).solve(problem, np.random.default_rng(3), None)
    assert solve() == solve()


def test_breeding_depends_on_its_seed_only_and_leaves_the_global_generators_alone():
    def breed_once(seed):
        seen = []
        fitness = lambda _, rows, __: [seen.append(tuple(r)) or float(sum(r)) for r in rows]
        start = np.zeros((6, 4), dtype=np.int64)
        breed.run_pygad(
            start, [[0, 1, 2]] * 4, fitness, lambda _: None,
            num_generations=5, mutation_probability=0.3, seed=seed,
        )  # fmt: skip
        return seen

    random.seed(5)
    np.random.seed(5)
    states = random.getstate(), np.random.get_state()[1].tolist()
    assert breed_once(1) == breed_once(1) != breed_once(2)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states


@pytest.mark.parametrize("name", PLANNERS)
def test_where_the_step_fits_nothing_is_done(name):
    program = programs.blocks(3)
    peak = liveness.memory_curve(program).peak_bytes
    problem = Problem(program=program, device=programs.UNIT, budget_bytes=peak)
    solution = base.run_planner(problem, name)
    assert dict(solution.decisions) == {}
    assert solution.is_optimal
    assert solution.forecast.offload_bytes == 0


@pytest.mark.parametrize("name", PLANNERS)
def test_a_tighter_budget_never_gets_a_faster_plan(name):
    times = []
    for share in (0.05, 0.25, 0.45, 0.65, 0.85):
        problem = make_problem(programs.blocks(4), share)
        solution = settings_of(name).solve(problem, np.random.default_rng(0), None)
        fits = solution.forecast.fits(problem.budget_bytes)
        times.append(solution.forecast.step_s if fits else np.inf)
    assert all(tight >= loose - 1e-9 for tight, loose in itertools.pairwise(times))


def test_a_ladder_of_budgets_is_monotone_whatever_the_planner_does():
    @dataclasses.dataclass(frozen=True)
    class Careless:
        """Fast at tight budgets, slow at wide ones."""

        name = "careless"

        def solve(self, problem, rng, progress):
            everything = np.full(problem.num_candidates, 1 if problem.budget_bytes < 30 else 2)
            return base.make_solution(problem, everything, self.name)

    problem = make_problem(programs.chain([9, 9, 9, 9]), 0.5)
    budgets = [35, 1, 29, 34]
    alone = base.run_planner(problem.at_budget(34), Careless()).forecast.step_s
    wide, none, tight, wider = base.run_ladder(problem, budgets, Careless())
    assert none is None
    assert tight.forecast.step_s < alone
    assert wide.forecast.step_s == wider.forecast.step_s == tight.forecast.step_s


def test_a_policy_that_does_not_fit_points_to_planners_that_do():
    problem = make_problem(programs.blocks(3), 0.05)
    with pytest.raises(BudgetInfeasibleError, match=r'`chen`.*`planner="genetic"` gets to \d+ B'):
        base.run_planner(problem, "chen")


@pytest.mark.parametrize("name", PLANNERS)
def test_what_cannot_fit_is_an_error_that_names_the_floor_and_its_op(name):
    problem = make_problem(programs.blocks(3), 0.0)
    floor = problem.budget_bytes
    tight = dataclasses.replace(problem, budget_bytes=floor - 1)
    with pytest.raises(BudgetInfeasibleError) as caught:
        base.run_planner(tight, settings_of(name))
    message = str(caught.value)
    assert f"`budget={floor - 1} B`" in message
    assert f"{floor} B, set by op" in message
    assert "model.py:" in message
    assert f"Raise `budget` to at least {floor} B" in message
    assert "smaller batch" in message


@pytest.mark.parametrize("name", ["genetic", "exact", "greedy"])
def test_the_host_budget_is_kept(name):
    # On a fast link all that leaves is offloaded, if there is room for it on the host.
    device = programs.make_device(bytes_per_s=8.0)
    roomy = make_problem(programs.blocks(4), 0.3, device=device)
    wanted = base.run_planner(roomy, settings_of(name)).forecast.host_bytes
    assert wanted > 12
    problem = dataclasses.replace(roomy, host_budget_bytes=12)
    solution = base.run_planner(problem, settings_of(name))
    assert 0 < solution.forecast.host_bytes <= 12
    assert solution.forecast.recompute_s > 0


def test_too_little_host_memory_is_named():
    draft = programs.Draft()
    draft.op("f", 1, "forward", [], [("x", 8)])
    draft.op("g", 1, "forward", [], [], scratch_bytes=4)
    draft.op("b", 1, "backward", ["x"])
    draft.candidate("x")
    problem = Problem(
        program=draft.finish(), device=programs.UNIT, budget_bytes=8, host_budget_bytes=7
    )
    with pytest.raises(BudgetInfeasibleError, match=r"`host_budget=7 B`|`host_budget` \(7 B\)"):
        base.run_planner(problem, "greedy")
    enough = dataclasses.replace(problem, host_budget_bytes=8)
    assert base.run_planner(enough, "greedy").forecast.host_bytes == 8


def test_a_step_with_nothing_to_decide_about_is_infeasible_at_its_own_peak():
    draft = programs.Draft()
    draft.op("f", 1, "forward", [], [("x", 8)])
    problem = Problem(program=draft.finish(), device=programs.UNIT, budget_bytes=7)
    with pytest.raises(BudgetInfeasibleError, match=r"8 B, set by op 0, `f` \(model.py:0\)"):
        base.run_planner(problem, "greedy")


def test_an_unknown_planner_is_refused_with_the_known_ones():
    with pytest.raises(BadArgumentError, match=r'`planner=\'magic\'`.*"exact", .*"genetic"'):
        base.find_planner("magic")


def test_the_genetic_search_is_no_slower_than_any_planner_it_starts_from():
    problem = make_problem(programs.blocks(6), 0.15)
    best = SMALL.solve(problem, np.random.default_rng(0), None).forecast.step_s
    for name in PLANNERS:
        if name != "genetic":
            other = base.find_planner(name).solve(problem, np.random.default_rng(0), None)
            if other.forecast.fits(problem.budget_bytes):
                assert best <= other.forecast.step_s + 1e-9


def test_progress_is_told_and_ends():
    calls = []
    problem = make_problem(programs.blocks(3), 0.4)
    base.run_planner(problem, SMALL, progress=lambda *call: calls.append(call))
    assert [done for done, _, _ in calls] == [0, 1, 2, 3, 4]


def test_a_time_limit_still_gives_a_plan_that_fits():
    problem = make_problem(programs.blocks(6), 0.3)
    for name in ("genetic", "exact", "autotm"):
        solution = base.run_planner(problem, name, time_limit_s=0.05)
        assert solution.forecast.fits(problem.budget_bytes)


@hp.settings(max_examples=12)
@hp.given(programs.programs(max_candidates=10, with_loops=True), hps.floats(0.0, 0.9))
def test_genetic_and_exact_reach_the_best_of_all_plans(program, share):
    # One window and one distance each: at most 3 choices for each of 10 candidates.
    problem = make_problem(program, share, spreads=(1.0,))
    hp.assume(exact.count_combinations(problem) <= 60_000)
    best = exact.enumerate_all(problem)
    best_cost = float(problem.costs_of(best)[0])
    rng = np.random.default_rng(0)
    for planner in (SMALL, exact.Exact()):
        solution = planner.solve(problem, rng, None)
        cost = float(problem.costs_of(np.array(solution.genes))[0])
        assert cost == pytest.approx(best_cost)


@pytest.mark.parametrize("seed", range(4))
def test_the_genetic_search_finds_the_best_plan_without_being_told(seed):
    problem = make_problem(programs.blocks(3, seed=seed), 0.3, spreads=(0.0,))
    best_s = float(problem.evaluate(exact.enumerate_all(problem)).step_s[0])
    alone = dataclasses.replace(SMALL, seeds=(), population=48, patience=8, max_op_evaluations=4e6)
    found = alone.solve(problem, np.random.default_rng(seed), None)
    assert found.forecast.step_s == pytest.approx(best_s)


@hps.composite
def problems_and_genes(draw):
    """Any plan, and a problem whose budget it just meets."""
    program = draw(programs.programs(max_candidates=8))
    device = programs.make_device(bytes_per_s=draw(hps.sampled_from([1.0, 4.0])))
    problem = Problem(
        program=program,
        device=device,
        budget_bytes=1,
        efficiency=programs.EXACT,
        spreads=(0.0, 2.0),
    )
    rows = [np.flatnonzero(row).tolist() for row in problem.options.is_allowed]
    genes = np.array([draw(hps.sampled_from(row)) for row in rows])
    forecast = problem.forecast(genes)
    host = forecast.host_bytes if draw(hps.booleans()) else None
    fitting = dataclasses.replace(
        problem, budget_bytes=max(forecast.peak_bytes, 1), host_budget_bytes=host
    )
    return fitting, genes, forecast


def least_s(problem, genes):
    """The least time that the linear model allows a plan; None if it forbids the plan."""
    model = linear.LinearModel(problem, np.arange(len(problem.program.ops)), True)
    matrix, limits = model.rows()
    stays = set(problem.forecast(genes).stays)
    acts = [n not in stays for n in problem.program.candidate_names] * (genes != KEEP_GENE)
    lower, upper = np.zeros(model.num_columns), model.upper()
    count = problem.num_candidates
    lower[:count] = upper[:count] = acts & (genes >= 2)
    lower[count : 2 * count] = upper[count : 2 * count] = acts & (genes == 1)
    least = scipy.optimize.linprog(
        model.costs(), A_ub=matrix, b_ub=limits, bounds=np.stack([lower, upper], axis=1)
    )
    return problem.baseline.step_s + least.fun * model.scale_s if least.status == 0 else None


@hp.settings(max_examples=120)
@hp.given(problems_and_genes())
def test_every_plan_that_fits_satisfies_the_linear_model_with_its_own_waiting(drawn):
    problem, genes, forecast = drawn
    least = least_s(problem, genes)
    assert least is not None
    assert least <= forecast.step_s * (1 + 1e-6)


@pytest.mark.parametrize(("before_s", "after_s", "wait_s"), [(4, 4, 0), (3, 4, 1), (4, 1, 3)])
def test_the_linear_model_knows_what_the_link_can_carry(before_s, after_s, wait_s):
    # `x`, 4 bytes and 4 s each way, has to be away while `big` runs.
    draft = programs.Draft()
    draft.op("f", 1, "forward", [], [("x", 4)])
    draft.op("before", before_s, "forward")
    draft.op("big", 1, "forward", scratch_bytes=10)
    draft.op("after", after_s, "backward")
    draft.op("b", 1, "backward", ["x"])
    draft.candidate("x")
    problem = Problem(
        program=draft.finish(),
        device=programs.UNIT,
        budget_bytes=10,
        efficiency=programs.EXACT,
        spreads=(0.25, 0.5, 1.0),
    )
    solution = exact.Exact().solve(problem, np.random.default_rng(0), None)
    bound_s = solve_relaxed(problem, np.arange(5)).bound_s
    assert solution.forecast.stall_s == pytest.approx(wait_s)
    assert bound_s == pytest.approx(solution.forecast.step_s)


def test_the_linear_model_counts_a_parent_of_two_children_once():
    draft = programs.Draft()
    for name, size in (("p", 5), ("c1", 2), ("c2", 3)):
        draft.op(name, 1, "forward", [], [(name, size)])
    draft.op("turn", 1, "forward", scratch_bytes=1)
    draft.op("b2", 1, "backward", ["c2"])
    draft.op("b1", 1, "backward", ["c1"], scratch_bytes=20)
    draft.op("b0", 1, "backward", ["p"])
    draft.candidate("p", again=1)
    draft.candidate("c1", again=1, parents=["p"])
    draft.candidate("c2", again=1, parents=["p"])
    free = Problem(
        program=draft.finish(), device=programs.UNIT, budget_bytes=27, efficiency=programs.EXACT
    )
    everything = np.array([1, 1, 1])
    # At b1: p, back since b2, and c1, and the scratch.
    assert free.forecast(everything).bytes_at == (5, 2, 3, 1, 8, 27, 5)
    assert least_s(free, everything) == pytest.approx(free.forecast(everything).step_s)
    assert least_s(free.at_budget(26), everything) is None


def test_the_linear_model_lets_a_parent_return_early_for_its_child():
    draft = programs.Draft()
    draft.op("v", 1, "forward", [], [("v", 8)])
    draft.op("c", 1, "forward", [], [("c", 1)])
    draft.op("wide", 20, "forward")
    draft.op("gone", 1, "backward")
    draft.op("long", 20, "backward")
    draft.op("bc", 1, "backward", ["c"])
    draft.op("mid", 1, "backward")
    draft.op("bv", 1, "backward", ["v"])
    draft.candidate("v")
    draft.candidate("c", again=1, parents=["v"])
    problem = Problem(
        program=draft.finish(),
        device=programs.UNIT,
        budget_bytes=9,
        efficiency=programs.EXACT,
        spreads=(0.125, 1.0),
    )
    genes = np.array([4, 1])
    forecast = problem.forecast(genes)
    # v comes back beside `long`, for bc, long before bv: nothing waits.
    assert (forecast.stays, forecast.stall_s, forecast.peak_bytes) == ((), 0, 9)
    assert least_s(problem, genes) == pytest.approx(forecast.step_s)


@hp.settings(max_examples=15)
@hp.given(programs.programs(max_candidates=6), hps.floats(0.0, 0.9))
def test_no_plan_beats_the_bound_of_the_linear_model(program, share):
    problem = make_problem(program, share, spreads=(0.0, 2.0))
    hp.assume(1 < exact.count_combinations(problem) <= 20_000)
    forecasts = problem.evaluate(exact.enumerate_all(problem))
    hp.assume(bool(problem.fits(forecasts)[0]))
    relaxed = solve_relaxed(problem, np.arange(len(program.ops)))
    assert relaxed.bound_s <= float(forecasts.step_s[0]) * (1 + 1e-6)


def test_the_integer_program_is_close_where_the_link_is_narrow():
    # Too much to enumerate: the bound comes from the linear model.
    problem = make_problem(programs.blocks(12), 0.1)
    solution = exact.Exact().solve(problem, np.random.default_rng(0), None)
    assert solution.gap is not None
    assert 0 <= solution.gap < 0.1
    assert not solution.is_optimal
    assert solution.bound_s > problem.baseline.step_s


def test_a_problem_knows_which_choices_are_possible():
    problem = Problem(
        program=programs.chain([3, 5, 7]), device=programs.UNIT, budget_bytes=1,
        efficiency=programs.EXACT,
    )  # fmt: skip
    # a2 is wanted again at once: it can only be kept.
    assert problem.options.is_allowed[2].tolist() == [True] + [False] * 26
    assert problem.allowed(np.array([1, 1, 1])).tolist() == [1, 1, KEEP_GENE]
    # 3 bytes take 3 s: f1 f2 b2 are 1 + 1 + 2 s, so a copy alone needs a window of 4 turns.
    windows = {int(w) for w in problem.options.windows[0, 2:]}
    assert windows >= {1, 4}
