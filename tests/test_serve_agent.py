"""An agent harness as it comes from the registry, pointed at the server."""

import asyncio
import json

import pytest

from tests.serving import STRICT, running

agents = pytest.importorskip("agents", reason="openai-agents is not installed")


@pytest.fixture(scope="module")
def server():
    with running(*STRICT) as started:
        yield started


@pytest.mark.parametrize("streamed", [False, True])
def test_openai_agents_calls_tools_and_goes_on(server, streamed):
    from openai import AsyncOpenAI

    called = []

    @agents.function_tool
    def get_weather(location: str, num_days: int) -> str:
        """Weather: weather, forecast or rain in a city"""
        called.append((location, num_days))
        return json.dumps({"sky": "clear"})

    async def run():
        client = AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        agents.set_tracing_disabled(True)
        agent = agents.Agent(
            name="weather",
            instructions="You are a helpful assistant.",
            tools=[get_weather],
            model=agents.OpenAIChatCompletionsModel(model="nano", openai_client=client),
            model_settings=agents.ModelSettings(
                tool_choice="required", max_tokens=300, extra_body={"seed": 7}
            ),
        )
        question = "How is the weather in Seoul for 3 days."
        async with client:
            if not streamed:
                return await agents.Runner.run(agent, question, max_turns=4)
            result = agents.Runner.run_streamed(agent, question, max_turns=4)
            async for _ in result.stream_events():
                pass
            return result

    result = asyncio.run(run())
    assert called
    assert all(isinstance(days, int) and isinstance(place, str) for place, days in called)
    kinds = [item.type for item in result.new_items]
    assert kinds[:2] == ["tool_call_item", "tool_call_output_item"]
    assert isinstance(result.final_output, str)
