"""Decodes that get several tokens an iteration: the rules by hand, the array engine against them, `vllm(...)`."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import msgspec
import numpy as np
import pytest
from compare_runs import as_program, exact_difference, first_difference, run_oracle, run_together
from generate import generate
from test_check import ONE, change, engine_program
from test_named import called
from test_oracle import SECOND, actions, engine, op, samples
from test_windows import both_ways, engine_of

import oracle
import serqjax as sq
from serqjax import costs, deployments, ir, workloads
from serqjax.check import as_text, check_program, describe, find_problems
from serqjax.check.licence import licence
from serqjax.drawing.words import stage_words
from serqjax.engine import simulate_many
from serqjax.engine.make_plan import make_plan
from serqjax.engine.state import Capacities, fields
from serqjax.ir import expr as e
from serqjax.ir import from_json, to_json
from serqjax.ir.program import Program, Step
from serqjax.report.raw import Action

E = "$.stages[0].kind"


def speculative(program: Program, decode: e.Expr | None, verify: e.Expr | None = None) -> Program:
    """The program with these fields on each of its step stages."""
    replace = msgspec.structs.replace
    stages = tuple(
        replace(s, kind=replace(s.kind, decode=decode, verify=verify)) if isinstance(s.kind, Step) else s
        for s in program.stages
    )
    return replace(program, stages=stages)


def three(program: Program, verify: float | None = None) -> Program:
    return speculative(program, e.Num(3.0), None if verify is None else e.Num(verify))


# ---------------------------------------------------------------- the rules, by hand


def test_an_output_of_seven_with_three_tokens_a_step() -> None:
    """The prefill gives the first token, two iterations the other six."""
    raw = oracle.simulate(three(engine([[(10, 7, 0)]], blocks=4)), trace=True, check=True)
    assert actions(raw, Action.give) == [(0.0, "give", 0, 10.0), (1.0, "give", 0, 3.0), (2.0, "give", 0, 3.0)]
    assert actions(raw, Action.token) == [(1.0, "token", 0, 0.0), (2.0, "token", 0, 3.0), (3.0, "token", 0, 3.0)]
    assert raw.request_tokens.tolist() == [7]
    assert (raw.request_first[0], raw.request_last[0]) == (SECOND, 3 * SECOND)


def test_what_is_left_units_and_gaps() -> None:
    """19 decode tokens in blocks of 16: positions 14, 17, 20, 23, 26, 29, 32, 33."""
    raw = oracle.simulate(three(engine([[(14, 20, 0)]], blocks=4)), trace=True, check=True)
    assert [a[3] for a in actions(raw, Action.give)] == [14, 3, 3, 3, 3, 3, 3, 1]
    assert actions(raw, Action.grow) == [(1.0, "grow", 0, 16.0), (7.0, "grow", 0, 16.0)]
    assert raw.pools[0].used_tick == (1 * 1 + 2 * 6 + 3 * 1) * SECOND  # blocks
    assert raw.request_tokens.tolist() == [20] and raw.end_tick == 8 * SECOND
    stage = raw.stages[0]
    # the tokens of one iteration come together: 2 gaps of nothing in each of six, and one of 1 s before each
    assert sorted((least, count) for count, least, _ in stage.itl_buckets.values()) == [(0, 12), (SECOND, 7)]
    assert (stage.itl_count, stage.itl_tick) == (19, 7 * SECOND)
    assert (stage.iterations, stage.decode_iterations, stage.decode_batch) == (8, 7, 7)


def test_gaps_of_the_warm_up_do_not_count() -> None:
    """At 3.5 s the warm-up ends: four iterations with a gap before them and two, two, two and no gaps in them."""
    program = msgspec.structs.replace(three(engine([[(14, 20, 0)]], blocks=4)), warmup_s=e.Num(3.5))
    stage = oracle.simulate(program).stages[0]
    assert sorted((least, count) for count, least, _ in stage.itl_buckets.values()) == [(0, 8), (SECOND, 5)]


def test_the_budget_cuts_what_a_decode_gets() -> None:
    """5 tokens an iteration: the first decode gets three, the second two, until the first has its nine."""
    raw = oracle.simulate(three(engine([[(1, 10, 0)], [(1, 10, 0)]], blocks=4, budget=5.0)), trace=True)
    assert [a[3] for a in actions(raw, Action.give)] == [1, 1, 3, 2, 3, 2, 3, 2, 3]
    assert [a[3] for a in actions(raw, Action.iteration)] == [2, 5, 5, 5, 3]
    assert raw.request_tokens.tolist() == [10, 10]


def test_tokens_that_come_to_nothing_take_budget() -> None:
    """4 are computed for each decode that gets 3, of 6: 4 and 2. The last iteration computes 4 though 3 are left."""
    raw = oracle.simulate(three(engine([[(1, 10, 0)], [(1, 10, 0)]], blocks=4, budget=6.0), 4.0), trace=True)
    assert [a[3] for a in actions(raw, Action.give)] == [1, 1, 3, 2, 3, 2, 3, 2, 3]
    assert [a[3] for a in actions(raw, Action.iteration)] == [2, 6, 6, 6, 4]
    assert raw.request_tokens.tolist() == [10, 10]
    short = oracle.simulate(three(engine([[(1, 3, 0)]], blocks=4), 4.0), trace=True)
    assert [a[3] for a in actions(short, Action.iteration)] == [1, 4]
    assert actions(short, Action.token)[-1] == (2.0, "token", 0, 2.0)


def test_a_prefill_gets_what_the_drafts_leave() -> None:
    """Budget 6: one decode takes 4 though it gets 3, so that a prompt of 10 gets 2 beside it."""
    program = engine([[(1, 7, 0)], [(10, 1, 0)]], blocks=4, budget=6.0, at=(0.0, 1.0))
    raw = oracle.simulate(three(program, 4.0), trace=True)
    assert actions(raw, Action.give) == [
        (0.0, "give", 0, 1.0), (1.0, "give", 0, 3.0), (1.0, "give", 1, 2.0), (2.0, "give", 0, 3.0),
        (2.0, "give", 1, 2.0), (3.0, "give", 1, 6.0),
    ]  # fmt: skip


def test_growth_of_several_tokens_preempts() -> None:
    """3 blocks for two of 14: the first grows to 17, the second preempts itself and comes back with 15 tokens."""
    raw = oracle.simulate(three(engine([[(14, 6, 0)], [(14, 6, 0)]], blocks=3)), trace=True, check=True)
    assert [a[3] for a in actions(raw, Action.give)] == [14, 14, 3, 2, 15, 3, 1]
    assert actions(raw, Action.preempt) == [(1.0, "preempt", 1, 14.0)]
    assert actions(raw, Action.grow) == [(1.0, "grow", 0, 16.0), (3.0, "grow", 1, 16.0)]
    assert raw.request_tokens.tolist() == [6, 6]
    assert (raw.request_last // SECOND).tolist() == [3, 5]


def test_a_preempted_decode_gives_its_budget_back() -> None:
    """The oldest is served first and preempted by the growth of the newest: what was computed for it is left again."""
    oldest = ir.Preempt(order=ir.Order(keys=(e.Ctx("Admission"),), tie="latest"))
    program = engine([[(14, 4, 0)], [(14, 4, 0)], [(1, 9, 0)]], blocks=4, preempt=oldest)
    eight = e.Cond(op("Gt", e.Ctx("Ndec"), e.Num(0.0)), e.Num(8.0), e.Num(64.0))  # tokens beside decodes
    ((program, raw),) = run_together([change(three(program, 5.0), ("stages[0].kind.budget", eight))])
    assert actions(raw, Action.preempt) == [(1.0, "preempt", 0, 14.0)]
    # 5 are computed for the second and 3 for the third: had the first kept its 5, 3 and none
    assert actions(raw, Action.give)[3:5] == [(1.0, "give", 1, 3.0), (1.0, "give", 2, 3.0)]
    assert actions(raw, Action.iteration)[1] == (1.0, "iteration", -1, 8.0)


#: Variables in the first iteration with a decode at position 10 that gets three tokens: of three computed, of five.
VARIABLES: dict[e.ContextName, tuple[float, float]] = {
    "Ntok": (3, 5), "Npre": (0, 0), "Ndec": (1, 1), "DecodePositions": (13, 15), "Kvb": (16, 16), "Attn": (0, 0),
    "LeastDecode": (10, 10), "MostDecode": (10, 10), "Nsch": (1, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", VARIABLES)
def test_variables_of_a_cost(name: e.ContextName) -> None:
    for value, verify in zip(VARIABLES[name], (None, 5.0)):
        program = three(engine([[(10, 7, 0)]], blocks=4, cost=op("Add", ONE, e.Ctx(name))), verify)
        first, second, _ = (a[0] for a in actions(oracle.simulate(program, trace=True), Action.token))
        assert second - first == 1 + value


def test_less_than_one_token_is_one_and_residents_may_say_how_many() -> None:
    """`Nres`: two residents get two tokens each; the last one alone gets one. 0 and 0 / 0 are 1."""
    two = [[(1, 7, 0)], [(1, 4, 0)]]
    raw = oracle.simulate(speculative(engine(two, blocks=4), e.Ctx("Nres")), trace=True)
    assert [a[3] for a in actions(raw, Action.give)] == [1, 1, 2, 2, 2, 1, 1, 1]
    plain = oracle.simulate(engine(two, blocks=4), trace=True)
    nothing = op("Sub", e.Ctx("Nres"), e.Ctx("Nres"))
    for decode in (nothing, op("Div", nothing, nothing)):
        same = oracle.simulate(speculative(engine(two, blocks=4), decode, nothing), trace=True)
        assert exact_difference(plain, same) is None


# ---------------------------------------------------------------- the array engine


def generated(name: str, count: int, verifies: bool) -> list[Program]:
    found = []
    for k in range(count):
        rng = Random(f"speculative/{name}/{k}")
        decode = rng.randint(2, 5)
        verify = e.Num(float(decode + rng.randint(0, 3))) if verifies else None
        found.append(speculative(as_program(generate(name, rng)), e.Num(float(decode)), verify))
    return found


def met(name: str, programs: list[Program]) -> dict[str, int]:
    """Run everywhere and compare; how often what matters has happened."""
    told: dict[str, int] = {"several": 0, "mixed": 0, "cut": 0, "preemptions": 0}
    for program, raw in run_together(programs):
        assert find_problems(program) == [], name
        assert raw.trace is not None
        told["preemptions"] += sum(pool.preemptions for pool in raw.pools)
        kind = next(s.kind for s in program.stages if isinstance(s.kind, Step))
        assert isinstance(kind.decode, e.Num)
        rows = raw.trace[np.isin(raw.trace[:, 1], [Action.give, Action.token])]
        tokens = rows[rows[:, 1] == Action.token][:, 4]
        told["several"] += int((tokens > 1).sum())
        told["cut"] += int(((tokens > 0) & (tokens < kind.decode.value)).sum())
        told["mixed"] += int(raw.stages[0].mixed_tick > 0)
    return told


#: structure, whether more is computed than given
QUICK = [("chunk_tail", True), ("serve_state", False)]
SLOW = [("two_turns_cached", True), ("alone", True),
        ("granule", True), ("body_crowd", False), ("legs_engine", True), ("fleet_hold_chunk", True),
        ("no_block", True), ("preempt_none_cached", False), ("hold_cached_tight", True), ("two_engines_split", True),
        ("header_used", True), ("evict_size", False), ("sessions", True)]  # fmt: skip

#: Where no iteration has prefills and decodes.
APART = ("alone", "legs_engine", "two_engines_split")


@pytest.mark.parametrize("case", [*QUICK, *(pytest.param(c, marks=pytest.mark.slow) for c in SLOW)], ids=str)
def test_the_array_engine_and_the_oracle_do_the_same(case: tuple[str, bool]) -> None:
    """Action by action: prefills beside decodes, chunks, budgets that cut, pools that preempt."""
    name, verifies = case
    told = met(name, generated(name, 12, verifies))
    assert told["several"] > 20 and told["cut"] > 0 and (told["mixed"] > 0) == (name not in APART)
    if case in QUICK:
        assert told["preemptions"] > 0


AT_ONCE = ["chunk_reserve", "fleet_hold_cached", "hold_cached_tight"]


@pytest.mark.parametrize("name", ["two_turns_cached", *(pytest.param(n, marks=pytest.mark.slow) for n in AT_ONCE)])
def test_planning_at_once_changes_nothing(name: str) -> None:
    programs = generated(name, 12, name != "chunk_reserve")
    found = licence(programs[0], next(i for i, s in enumerate(programs[0].stages) if isinstance(s.kind, Step)))
    assert found.at_once and not found.windows
    fewer, more, _ = both_ways(programs)
    assert fewer < more
    for program, run in zip(programs, simulate_many(programs, [program.seed for program in programs])):
        assert first_difference(run, run_oracle(program)) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["two_turns_cached", "chunk_tail"])
def test_all_instances_together(name: str) -> None:
    """The form of the loop for accelerators gives the same bits."""
    from serqjax.engine import host
    from serqjax.engine.step import Config

    programs = generated(name, 6, name == "two_turns_cached")
    seeds = [program.seed for program in programs]
    made = {id(program): make_plan(program) for program in programs}
    with host.settings():
        batch = host.Batch.build(
            made[id(programs[0])][0], made, programs, seeds, Config(form="together"), False, False
        )  # fmt: skip
        together = batch.run(None, host.SharedProgress(host.NoProgress(), len(programs)))
    for one, other in zip(simulate_many(programs, seeds), together):
        assert exact_difference(one, other) is None


def test_one_token_is_what_it_was() -> None:
    """`decode` 1, and `verify` 1, give the run of the program without them, bit for bit."""
    cost = op("Add", e.Num(0.3), op("Mul", e.Num(1e-3), op("Add", e.Ctx("DecodePositions"), e.Ctx("Ntok"))))
    plain = msgspec.structs.replace(engine_of(cost, 40, 1e6), warmup_s=e.Num(3.0))
    others = [speculative(plain, ONE), speculative(plain, None, ONE)]
    expected, *runs = [simulate_many([program], [1], trace=True)[0] for program in (plain, *others)]
    assert expected.stages[0].itl_count > 100
    for run in runs:
        assert exact_difference(expected, run) is None
    for program in others:
        assert exact_difference(run_oracle(plain), run_oracle(program)) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["two_turns_cached", "chunk_tail", "body_patient", "legs_engine"])
def test_one_token_is_what_it_was_in_generated_programs(name: str) -> None:
    programs = [as_program(generate(name, Random(f"speculative/one/{k}"))) for k in range(12)]
    seeds = [program.seed for program in programs]
    ones = [speculative(program, ONE, ONE) for program in programs]
    for one, other in zip(simulate_many(programs, seeds, trace=True), simulate_many(ones, seeds, trace=True)):
        assert exact_difference(one, other) is None
    for one, other in zip(programs, ones):
        assert exact_difference(run_oracle(one), run_oracle(other)) is None


def test_only_who_asks_for_it_has_the_arrays() -> None:
    names = {"decode", "verify", "computed"}

    def has(program: Program) -> set[str]:
        return names & set(fields(make_plan(program)[0], Capacities(slots=4, seats=4), 1e-9))

    program = engine_program()
    assert has(program) == set()
    assert has(three(program)) == {"decode"} and has(three(program, 4.0)) == names


def test_what_others_read_of_the_drafts() -> None:
    """`Demand` of a claim and `BudgetLeft` of a session count what would be computed: 5 for each of two decodes."""
    turns = [[(1, 7, 0)], [(1, 7, 0)], [(1, 1, 0)]]
    five = ir.Claim(name="five each", kind=ir.EveryIteration("E"), value=op("Eq", e.Ctx("Demand"), e.Num(10.0)))
    left = ir.Observe("done", e.StageState("BudgetLeft", "E"))
    program = engine(turns, blocks=4, claims=(five,))
    at = next(i for i, state in enumerate(program.states) if state.name == "answered")
    ((program, raw),) = run_together([change(three(program, 5.0), (f"states[{at}].ops", (left, ir.Respond())))])
    # the third ends beside two decodes, the others end together
    assert sorted(value for _, _, value in samples(program, raw, "done")) == [54.0, 64.0, 64.0]
    assert (raw.claims[0].checked, raw.claims[0].failures) == (3, 1)  # the first, of three prefills


# ---------------------------------------------------------------- check, words, files

#: what is wrong: changes, place, words
RULES: list[tuple[str, list[tuple[str, e.Expr]], str, str]] = [
    ("no token", [("decode", e.Num(0.0))], "decode", "stage `E`: a decode gets 0 tokens an iteration"),
    ("half a token", [("decode", e.Num(2.5))], "decode", "a decode gets what may not be a whole number of tokens"),
    ("all tokens", [("decode", e.Inf())], "decode", "a decode gets inf tokens an iteration"),
    ("may be a half", [("decode", op("Div", e.Ctx("Nres"), e.Num(2.0)))], "decode", "may not be a whole number"),
    ("fewer computed", [("decode", e.Num(3.0)), ("verify", e.Num(2.0))], "verify",
     "stage `E`: a decode is computed with 2 tokens an iteration"),
    ("computed without end", [("verify", e.Inf())], "verify", "a decode is computed with inf tokens"),
    ("half computed", [("verify", e.Num(1.5))], "verify", "a decode is computed with what may not be a whole number"),
    ("reads the tokens", [("decode", e.Ctx("Ntok"))], "decode",
     "the tokens of a decode reads `Ntok`, which does not exist in a budget or chunk, or the tokens of a decode"),
    ("reads what is left", [("verify", e.StageState("BudgetLeft", "E"))], "verify",
     "the tokens computed for a decode reads `BudgetLeft`"),
    ("reads an attribute", [("decode", e.Attr("input"))], "decode", "the tokens of a decode reads the attribute"),
]  # fmt: skip


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule[0])
def test_rules(rule: tuple[str, list[tuple[str, e.Expr]], str, str]) -> None:
    _, changes, field, words = rule
    found = find_problems(change(engine_program(), *((f"stages[0].kind.{name}", expr) for name, expr in changes)))
    assert any(x.path.startswith(f"{E}.{field}") and words in x.problem for x in found), found


def test_hint_of_too_few_computed_tokens() -> None:
    (found,) = find_problems(three(engine_program(), 2.0))
    assert "need the 3 tokens that it gets, or more, a finite number" in found.hint


def test_draws_are_counted_and_make_the_cost_a_float() -> None:
    drawn = op("Add", ONE, e.Sample("Bernoulli", (e.Num(0.5),)))
    program = speculative(engine_program(), drawn)
    assert make_plan(program)[0].machine_draws == 1
    facts = check_program(program).stages[0]
    assert not facts.fixed_point and "`decode` draws" in facts.float_reason
    assert not licence(program, 0).at_once


def test_random_acceptance_is_the_same_everywhere() -> None:
    """One draw an iteration for all decodes: 1, 2 or 3 tokens."""
    drawn = op("Add", e.Sample("Bernoulli", (e.Num(0.5),)), op("Add", e.Sample("Bernoulli", (e.Num(0.5),)), ONE))
    positions = op("Add", op("Mul", e.Num(0.01), e.Ctx("DecodePositions")), op("Mul", e.Num(0.1), e.Ctx("Ntok")))
    program = engine([[(10, 40, 0)], [(3, 60, 0)]], blocks=9, cost=op("Add", ONE, positions))
    _, raw = run_together([speculative(program, drawn, e.Num(5.0))])[0]
    amounts = [a[3] for a in actions(raw, Action.token) if a[3]]
    assert set(amounts) == {1.0, 2.0, 3.0} and raw.request_tokens.tolist() == [40, 60]


def test_the_licence_names_both_fields() -> None:
    found = licence(three(engine_program(), 4.0), 0)
    assert not found.windows and found.at_once and found.prefills and found.evicts
    text = as_text(three(engine_program(), 4.0))
    for line in (
        f"{E}.decode: stage `E`: the tokens of a decode: a decode gets several tokens an iteration, and a",
        f"{E}.verify: stage `E`: the tokens computed for a decode: tokens are computed that no decode gets",
        "a decode gets up to 3 tokens", "for each decode an iteration computes 4 tokens", "planned at once",
    ):  # fmt: skip
        assert line in text
    stage = describe(speculative(engine_program(), e.Ctx("Nres")))["stages"][0]
    assert (stage["decode"], stage["verify"]) == ("a computed number of", None)


def test_files() -> None:
    """Both fields are read back; a program without them is written as it always was."""
    program = three(engine_program(), 4.0)
    assert from_json(to_json(program)) == program
    old = to_json(engine_program())
    assert '"decode":' not in old and '"verify"' not in old and from_json(old) == engine_program()


def test_words_of_the_drawing() -> None:
    from serqjax.check.index import Index

    program = three(engine_program(), 4.0)
    words = stage_words(Index(program), program.stages[0], check_program(program).stages[0])
    assert "a decode gets, tokens: 3" in words and "computed for it, tokens: 4" in words


# ---------------------------------------------------------------- vLLM

CHEAP = costs.affine(base_s=1.0, per_decode_s=0.0, per_kv_tok_s=0.0, per_prefill_tok_s=0.0, per_attention_s=0.0)


def one_request(engine: deployments.Vllm) -> sq.Run:
    work = workloads.requests(num_prompts=1, input_len=10, output_len=7)
    return sq.run(sq.program(engine, work), seed=1)


def test_vllm_with_drafts() -> None:
    """The first token after 1 s, then two steps of 1 + 0.5 + 3 * 0.25 s with three tokens each."""
    cost = costs.with_drafts(CHEAP, draft_s=0.5, per_draft_tok_s=0.25)
    engine = deployments.vllm(num_speculative_tokens=3, tokens_per_step=3, cost=cost, num_gpu_blocks=20)
    row = one_request(engine).requests.to_polars().row(0, named=True)
    assert (row["output_tok"], row["ttft_s"], row["e2e_s"], row["tpot_s"]) == (7, 1.0, 5.5, 0.75)
    slower = engine.replace(tokens_per_step=1)  # no draft is accepted: six steps
    assert one_request(slower).requests.to_polars()["e2e_s"][0] == 1.0 + 6 * 2.25
    facts = sq.check(sq.program(engine, workloads.requests(num_prompts=1))).facts
    assert facts.stages[0].fixed_point


def test_itl_counts_tokens_as_tpot_does() -> None:
    engine = deployments.vllm(num_speculative_tokens=2, tokens_per_step=3, cost=CHEAP, num_gpu_blocks=20)
    run = one_request(engine)
    stage = run.raw.stages[0]
    assert (stage.itl_count, stage.itl_tick) == (6, 2 * SECOND)
    assert stage.itl_tick / stage.itl_count == pytest.approx(run.requests.to_polars()["tpot_s"][0] * SECOND)


@pytest.mark.parametrize(("settings", "message"), [
    ({"num_speculative_tokens": 3}, "tokens_per_step: how many of the 1 + 3 tokens that a step verifies"),
    ({"tokens_per_step": 2}, "tokens_per_step: without drafts a decode gets one token a step"),
    ({"num_speculative_tokens": 0, "tokens_per_step": 1}, "num_speculative_tokens: 0 is not allowed"),
    ({"num_speculative_tokens": 3, "tokens_per_step": 5}, "tokens_per_step: 5 is not allowed"),
    ({"num_speculative_tokens": 3, "tokens_per_step": 1.5}, "give a whole number from 1 to 4"),
    ({"num_speculative_tokens": 3, "tokens_per_step": True}, "tokens_per_step: True is not allowed"),
    ({"spec_method": "eagle"}, "spec_method: how drafts are made and accepted is not modelled"),
    ({"speculative_config": {}}, "speculative_config: how drafts are made and accepted is not modelled"),
])  # fmt: skip
def test_what_vllm_refuses(settings: dict, message: str) -> None:
    with pytest.raises(sq.ProgramError) as caught:
        deployments.vllm(**settings)
    assert message in str(caught.value)


@pytest.mark.parametrize("wrong", ["draft_s", "per_draft_tok_s"])
def test_what_drafts_cannot_cost(wrong: str) -> None:
    with pytest.raises(sq.ProgramError, match=f"{wrong}: -1.0 is not allowed; give seconds, 0 or more"):
        costs.with_drafts(costs.affine(), **{wrong: -1.0})


def fleet(engine: deployments.Vllm) -> deployments.Replicas:
    return deployments.replicas(engine, 2)


def apart(engine: deployments.Vllm) -> object:
    return deployments.disaggregated(prefill=engine.replace(num_speculative_tokens=None, tokens_per_step=None),
                                     decode=engine)  # fmt: skip


def tiered(engine: deployments.Vllm) -> deployments.Vllm:
    return engine.replace(offload=deployments.offload(cpu_blocks=50))


@pytest.mark.parametrize("compose", [fleet, apart, tiered])
def test_drafts_go_with_every_deployment(compose: Callable) -> None:
    """All requests get all their tokens, up to three at once."""
    engine = deployments.vllm(num_speculative_tokens=3, tokens_per_step=3, num_gpu_blocks=30, max_num_seqs=4)
    work = workloads.requests(num_prompts=8, input_len=40, output_len=20, request_rate=20.0)
    program = sq.program(compose(engine), work)
    raw = run_oracle(program, seed=1)
    assert raw.verdict.name == "drained"
    assert raw.request_tokens.tolist() == [20] * 8
    assert max(a[3] for a in actions(raw, Action.token)) == 3.0


def test_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("check", "vllm", "--set", "num_speculative_tokens=3", "--set", "tokens_per_step=2")
    code, out, _ = called(capsys, *words)
    assert code == 0 and "a decode gets up to 2 tokens" in out
    code, _, err = called(capsys, *words[:4])
    assert code in (1, 2) and "tokens_per_step: how many of the 1 + 3 tokens" in err
