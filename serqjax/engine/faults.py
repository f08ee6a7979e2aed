"""Faults that end an instance: run-time errors of a program and tables that ran full."""

from __future__ import annotations

from enum import IntEnum

from ..report.raw import Verdict


class Fault(IntEnum):
    none = 0
    guard = 1
    bad_amount = 2
    require = 3
    unsettled = 4
    free_iteration = 5
    slots = 6
    entries = 7
    gap = 8
    ownership = 9
    no_hold = 10
    seats = 11
    capacity = 12
    iteration_test = 13
    register = 14
    member = 15
    same_member = 16
    count = 17
    live_leg = 18
    blocks = 19
    load = 20
    leases = 21
    holds = 22
    bad_units = 23


AMOUNT = "{who}an amount is negative or not a number (units, tokens or seconds), "

#: Verdict and sentence of each fault. `{who}` is the session, or nothing where nobody in particular asked. The sentence
#: of an error ends with its time (`result.py`); the oracle has the same sentences.
SENTENCES: dict[Fault, tuple[Verdict, str]] = {
    Fault.guard: (Verdict.error, "{who}a guard is neither 0 nor 1, at state `{state}`"),
    Fault.bad_amount: (
        Verdict.error,
        AMOUNT + "at state `{state}`",
    ),
    Fault.bad_units: (Verdict.error, AMOUNT + "in pool `{pool}`"),
    Fault.require: (Verdict.error, "{who}{problem}"),
    Fault.unsettled: (
        Verdict.error,
        "{who}became ready 1001 times without time passing",
    ),
    Fault.capacity: (Verdict.error, "the capacity of stage `{stage}` is not a finite number"),
    Fault.free_iteration: (Verdict.error, "stage `{stage}`: an iteration with tokens and cost 0"),
    Fault.iteration_test: (Verdict.error, "stage `{stage}`: a test or gate of the iteration is neither 0 nor 1"),
    Fault.register: (Verdict.error, "stage `{stage}`: the value of a register is not a finite number"),
    Fault.slots: (Verdict.capacity, "more sessions were live than the session table holds ({slots}): raise `slots`"),
    Fault.entries: (
        Verdict.capacity,
        "more cache entries were alive than the entry table holds ({entries}): raise `entries`",
    ),
    Fault.seats: (
        Verdict.capacity,
        "more sessions were on step stages than have a seat ({seats}): raise `seats`",
    ),
    Fault.blocks: (
        Verdict.capacity,
        "a session held more blocks of a shared pool than its table has columns ({chain}): raise `chain`",
    ),
    Fault.holds: (
        Verdict.capacity,
        "more sessions held of a shared pool at once than its table has rows ({holds}): raise `holds`",
    ),
    Fault.leases: (
        Verdict.capacity,
        "more leases were alive than the lease table holds ({leases}): raise `leases`",
    ),
    Fault.load: (Verdict.error, "{who}a load passes the units allocated, in pool `{pool}`"),
    Fault.gap: (Verdict.error, "the gap between arrivals is not positive"),
    Fault.ownership: (Verdict.error, "pool `{pool}`: allocated + cached + free differs from its cap"),
    Fault.member: (
        Verdict.error,
        "{who}an index of `{array}` is not a whole number from 0 to {last}",
    ),
    Fault.same_member: (
        Verdict.error,
        "{who}two parts of the hold `{scope}` name one member: a hold takes each pool once",
    ),
    Fault.count: (Verdict.error, "{who}the count of a choice is not a whole number, at state `{state}`"),
    Fault.live_leg: (
        Verdict.error,
        "{who}ends while a leg it forked runs: join before the end, at state `{state}`",
    ),
    Fault.no_hold: (Verdict.error, "{who}no open hold to grow, shrink or load, in pool `{pool}`"),
}
