"""The SLOs of a call: its own, those of its class, those of its model; and what its marks say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from configs.schema import ModelConfig
from coordinator.errors import HeaderInvalid
from coordinator.instances import Instance
from coordinator.slo import CallSlo, SloWish, slo_of, slo_wish
from policy.vocabulary import RequestClass, Role
from tests.coordinator.call_rig import COLOCATED, PD, TWO_PD, a_chat, a_coordinator

if TYPE_CHECKING:
    from tests.coordinator.call_rig import Rig

TTFT, TPOT = "x-shadowprefill-ttft-slo-ms", "x-shadowprefill-tpot-slo-ms"
CLASSES = {
    "slo": {"ttft_s": 5.0, "tpot_s": 0.2},
    "slo_by_class": {"routed": {"ttft_s": 2.0, "tpot_s": 0.1}},
}


def a_model(**fields: Any) -> ModelConfig:
    slo = {"ttft_s": 5.0, "tpot_s": 0.2}
    return ModelConfig.model_validate({"path": "x", "max_model_len": 64, "slo": slo} | fields)


def marks(rig: Rig, instance: str) -> dict[str, Any]:
    return dict(rig.calls(instance)[-1].body["vllm_xargs"])


def budget_s(rig: Rig, instance: str) -> float:
    return float(marks(rig, instance)["shadowprefill_ttft_budget_s"])


@pytest.mark.parametrize(
    ("request_class", "wish", "expected"),
    [
        (RequestClass.NORMAL, SloWish(), CallSlo(5.0, 0.2)),
        (RequestClass.ROUTED, SloWish(), CallSlo(2.0, 0.1)),
        (RequestClass.NORMAL, SloWish(ttft_s=1.0), CallSlo(1.0, 0.2)),
        (RequestClass.ROUTED, SloWish(tpot_s=0.5), CallSlo(2.0, 0.5)),
        (RequestClass.ROUTED, SloWish(9.0, 9.0), CallSlo(9.0, 9.0)),
    ],
)
def test_the_calls_own_wins_over_its_class_and_that_over_its_model(
    request_class: RequestClass, wish: SloWish, expected: CallSlo
) -> None:
    assert slo_of(a_model(**CLASSES), request_class, wish) == expected


@pytest.mark.parametrize("request_class", list(RequestClass))
def test_a_class_without_targets_of_its_own_has_its_models(request_class: RequestClass) -> None:
    assert slo_of(a_model(), request_class, SloWish()) == CallSlo(5.0, 0.2)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(b"250", 0.25), (b"0.5", 0.0005), (b"3600000", 3600.0), (b"12.125", 0.012125)],
)
def test_a_header_is_in_milliseconds(value: bytes, seconds: float) -> None:
    assert slo_wish({TTFT.encode(): value}) == SloWish(seconds, None)
    assert slo_wish({TPOT.encode(): value}) == SloWish(None, seconds)
    assert slo_wish({}) == SloWish()


@pytest.mark.parametrize("name", [TTFT, TPOT])
@pytest.mark.parametrize(
    "value", ["0", "-1", "3600001", "1e3", "nan", "inf", "", "250ms", "1_0", "\xb2", "9" * 500]
)
def test_another_value_is_refused_with_its_header_and_limit(name: str, value: str) -> None:
    with pytest.raises(HeaderInvalid) as caught:
        slo_wish({name.encode(): value.encode("latin-1")})
    assert caught.value.param == name
    assert str(caught.value) == (
        f"{name} must be a number of milliseconds > 0 and <= 3600000, got {value[:80]!r}"
    )


async def test_a_client_is_told_and_no_engine_is_asked() -> None:
    async with a_coordinator(PD) as rig:
        reply = await rig.client.post(
            "/v1/chat/completions", json=a_chat(), headers={TTFT: "soon", "x-session-id": "s"}
        )
        assert reply.status_code == 400
        assert reply.json()["error"]["param"] == TTFT
        assert not rig.all_calls()
        assert (await rig.client.get("/v1/sessions/s")).status_code == 404


async def test_both_legs_carry_what_is_left_of_the_calls_own_target() -> None:
    async with a_coordinator(PD) as rig:
        await rig.client.post(
            "/v1/chat/completions", json=a_chat(), headers={TTFT: "2500", TPOT: "40"}
        )
        for instance in ("small-p", "small-d"):
            assert 0 < budget_s(rig, instance) < 2.5
            assert marks(rig, instance)["shadowprefill_tpot_s"] == 0.04
        assert budget_s(rig, "small-d") < budget_s(rig, "small-p"), "P has spent some of it"


async def test_a_routed_call_has_the_targets_of_its_class_and_a_normal_one_its_models() -> None:
    async with a_coordinator(COLOCATED, models={"small": CLASSES}) as rig:
        await rig.chat(a_chat(), x_session_id="s")
        assert marks(rig, "small-1")["shadowprefill_class"] == "routed"
        assert marks(rig, "small-1")["shadowprefill_tpot_s"] == 0.1
        assert budget_s(rig, "small-1") < 2.0
        await rig.chat(a_chat("nobody's"))
        assert marks(rig, "small-1")["shadowprefill_class"] == "normal"
        assert marks(rig, "small-1")["shadowprefill_tpot_s"] == 0.2


async def test_p_leaves_what_d_took_for_its_first_byte_after_earlier_hand_offs() -> None:
    async with a_coordinator(TWO_PD) as rig:
        d = rig.app.state.cluster.instances["small-d"]
        await rig.chat(a_chat())
        assert d.handoff_s == 0, "the end of a whole answer says nothing about its first byte"
        await rig.chat(a_chat(stream=True))
        assert 0 < d.handoff_s < 5
        d.handoff_s = 3.0
        await rig.chat(a_chat())
        assert budget_s(rig, "small-p") < 2.0
        assert budget_s(rig, "small-d") > 2.0
        d.handoff_s = 60.0
        await rig.chat(a_chat())
        assert budget_s(rig, "small-p") == 0.0


def test_the_first_hand_off_counts_in_full_and_later_ones_in_part() -> None:
    d = Instance(name="d", url="http://h:1", role=Role.DECODE, model="small")
    d.saw_handoff(1.0)
    assert d.handoff_s == 1.0
    d.saw_handoff(2.0)
    assert d.handoff_s == pytest.approx(1.2)
