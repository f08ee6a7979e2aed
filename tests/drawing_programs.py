"""A disaggregated deployment for pictures: prefill engines, a link, a decode engine, one hold inside the other."""

from __future__ import annotations

from serqjax.builder import Builder
from serqjax.ir import (
    Deadline,
    Delay,
    End,
    Enter,
    Goto,
    Leave,
    Member,
    Num,
    Param,
    Poisson,
    Preempt,
    ProcessorSharing,
    Program,
    Respond,
    Run,
    Step,
    Turn,
)


def disaggregated(prefill_engines: int = 3) -> Program:
    """A request takes memory on the decode engine, then on a prefill engine; its KV moves over the link."""
    b = Builder("disaggregated")
    for name in ("prompt", "out", "computed", "known", "engine"):
        b.attr(name)
    b.param("request_rate", 2.0, "requests/s")
    b.param("patience_s", 30.0, "s")
    b.param("bytes_per_tok", 131072.0, "bytes")
    b.param("link_bytes_per_s", 25e9, "bytes/s")
    for i in range(prefill_engines):
        b.pool(f"prefill_kv[{i}]", cap=Num(65536.0), block=Num(16.0), admit_via=f"prefill[{i}]",
               array="prefill_kv", index=i)
        b.stage(f"prefill[{i}]", Step(budget=b("8192"), cost=b("0.012 + 5.2e-5 * Npre + 4e-9 * Attn"),
                                      memory=f"prefill_kv[{i}]"), array="prefill", index=i)
    b.pool("slots", cap=Num(256.0), admit_via="decode")
    b.pool("decode_kv", cap=Num(431984.0), block=Num(16.0),
           preempt=Preempt(order=b.order("-Admission", tie="latest")))
    b.stage("link", ProcessorSharing(b("1 if N > 0 else 0")))
    b.stage("decode", Step(budget=b("256"), cost=b("0.0139 + 4.1e-5 * Ndec + 1.38e-7 * DecodePositions"),
                           memory="decode_kv"))
    b.stage("network", Delay())

    index = b("engine")
    b.scope("decode.request", b.take("slots", 1), b.take("decode_kv", "known", reserve="known + 16"),
            lets=(b.let("known", "Max(prompt, computed)"),), reentry="decode.admitted")
    b.scope("prefill.request", b.take(Member("prefill_kv", index), "prompt"), reentry="prefill.admitted",
            parent="decode.request")
    b.state("arrived", Turn(), b.set("engine", f"Floor(~Uniform(0, {prefill_engines}))"),
            exit=Run("network", "Plain", b("0.002"), "sent"))
    b.state("sent", exit=Enter("decode.request", Deadline(after=Param("patience_s"), target="given up")))
    b.state("decode.admitted", exit=Enter("prefill.request"), scope="decode.request")
    b.state("prefill.admitted", exit=Run(Member("prefill", index), "Prefill", b("prompt"), "move"),
            scope="prefill.request")
    b.state("move", b.observe("prefilled_s", "Now"),
            exit=Run("link", "Plain", b("prompt * bytes_per_tok / link_bytes_per_s"), "moved"), scope="prefill.request")
    b.state("moved", exit=Leave("decoding"), scope="prefill.request")
    b.state("decoding", exit=Run("decode", "Decode", b("out - 1"), "done", grows="decode_kv"), scope="decode.request")
    b.state("done", exit=Leave("answered"), scope="decode.request")
    b.state("answered", Respond(), exit=Goto("over"))
    b.state("given up", b.observe("given_up", 1), exit=Goto("over"))
    b.state("over", exit=End())
    turn = (b.set("prompt", "Ceil(~Exp(1500))"), b.set("out", "2 + Ceil(~Exp(300))"))
    return b.program("arrived", Poisson(Param("request_rate")), turn=turn, horizon_s=300.0)
