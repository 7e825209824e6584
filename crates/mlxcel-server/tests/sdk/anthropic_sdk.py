"""The official Python client of Anthropic against a server that follows the script of the tests."""

import sys

import anthropic

client = anthropic.Anthropic(base_url=sys.argv[1], api_key="sesame", max_retries=0)
TOOLS = [{"name": "weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}]


def said(text):
    return [{"role": "user", "content": text}]


def messages():
    message = client.messages.create(model="script", max_tokens=3, messages=said("A"), system="Be brief.")
    assert message.content[0].text == "BCD", message
    assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 3)
    stopped = client.messages.create(model="script", max_tokens=90, messages=said("A"), stop_sequences=["FG"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "FG")
    counted = client.messages.count_tokens(model="script", messages=said("A"))
    assert counted.input_tokens > 0


def streams():
    with client.messages.stream(model="script", max_tokens=90, messages=said("A")) as stream:
        assert "".join(stream.text_stream) == "BCDEFGHIJKLMNOPQRSTUVWXYZ"
        assert stream.get_final_message().stop_reason == "end_turn"
    with client.messages.stream(model="script", max_tokens=90, messages=said("3")) as stream:
        blocks = stream.get_final_message().content
        assert [block.type for block in blocks] == ["thinking", "text"], blocks


def tools():
    message = client.messages.create(model="script", max_tokens=90, messages=said("1"), tools=TOOLS)
    used = message.content[0]
    assert (used.type, used.name, used.input) == ("tool_use", "weather", {"city": "Bern"}), message
    with client.messages.stream(model="script", max_tokens=90, messages=said("1"), tools=TOOLS) as stream:
        assert stream.get_final_message().content[0].input == {"city": "Bern"}
    result = [{"type": "tool_result", "tool_use_id": used.id, "content": "sunny A"}]
    conversation = said("1") + [{"role": "assistant", "content": message.content}, {"role": "user", "content": result}]
    after = client.messages.create(model="script", max_tokens=1, messages=conversation, tools=TOOLS)
    assert after.content[0].text == "B", after


def errors():
    try:
        client.messages.create(model="script", max_tokens=3, messages=[])
        raise SystemExit("no messages were taken")
    except anthropic.BadRequestError as error:
        assert error.body["error"]["type"] == "invalid_request_error"
    try:
        anthropic.Anthropic(base_url=sys.argv[1], api_key="wrong", max_retries=0).messages.create(
            model="script", max_tokens=3, messages=said("A"))
        raise SystemExit("a wrong key was taken")
    except anthropic.AuthenticationError:
        pass


for test in [messages, streams, tools, errors]:
    test()
    print(f"{test.__name__}: ok")
