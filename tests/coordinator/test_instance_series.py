"""Who is well, as a scrape of the coordinator shows it."""

from __future__ import annotations

from tests.coordinator.call_rig import TWO_PD, a_coordinator, until


async def test_a_scrape_tells_which_instances_are_well_and_which_models_are_ready() -> None:
    async with a_coordinator(TWO_PD) as rig:
        rig.engines["large-d"].faults.kill()
        instances = rig.app.state.cluster.instances
        instances["small-p"].draining = True
        await until(lambda: not instances["large-d"].healthy, "found dead")
        lines = (await rig.client.get("/metrics")).text.splitlines()
        healthy = 'shadowprefill_instance_healthy{instance="%s",model="%s",role="%s"} %s'
        assert healthy % ("small-d", "small", "decode", "1.0") in lines
        assert healthy % ("large-d", "large", "decode", "0.0") in lines
        draining = (
            'shadowprefill_instance_draining{instance="small-p",model="small",role="prefill"}'
        )
        assert f"{draining} 1.0" in lines
        assert 'shadowprefill_model_ready{model="large"} 0.0' in lines
