"""The official Python client of OpenAI against a server that follows the script of the tests."""

import json
import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="sesame", max_retries=0)
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}}}}]


def said(text):
    return [{"role": "user", "content": text}]


def chats():
    answer = client.chat.completions.create(model="script", messages=said("A"), max_tokens=3)
    assert answer.choices[0].message.content == "BCD", answer
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    logprobs = client.chat.completions.create(
        model="script", messages=said("A"), max_tokens=1, logprobs=True, top_logprobs=2)
    assert logprobs.choices[0].logprobs.content[0].token == "B"
    assert len(logprobs.choices[0].logprobs.content[0].top_logprobs) == 2
    several = client.chat.completions.create(model="script", messages=said("A"), n=2, max_tokens=1)
    assert [choice.message.content for choice in several.choices] == ["B", "B"]


def streams():
    stream = client.chat.completions.create(
        model="script", messages=said("A"), stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == "BCDEFGHIJKLMNOPQRSTUVWXYZ", text
    assert chunks[-1].usage.completion_tokens == 26
    with client.chat.completions.stream(model="script", messages=said("3")) as helper:
        helper.until_done()
        assert helper.get_final_completion().choices[0].message.content == "the answer"


def tools():
    answer = client.chat.completions.create(model="script", messages=said("1"), tools=TOOLS)
    call = answer.choices[0].message.tool_calls[0]
    assert json.loads(call.function.arguments) == {"city": "Bern"}
    messages = said("1") + [answer.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "sunny A"}]
    after = client.chat.completions.create(model="script", messages=messages, tools=TOOLS, max_tokens=1)
    assert after.choices[0].message.content == "B", after
    name, arguments = None, ""
    for chunk in client.chat.completions.create(model="script", messages=said("1"), tools=TOOLS, stream=True):
        for delta in chunk.choices[0].delta.tool_calls or []:
            name = delta.function.name or name
            arguments += delta.function.arguments or ""
    assert (name, json.loads(arguments)) == ("weather", {"city": "Bern"})


def formats():
    schema = {"type": "object", "properties": {"n": {"const": 7}}, "required": ["n"], "additionalProperties": False}
    answer = client.chat.completions.create(
        model="script", messages=said("A"), logit_bias={"9": -1, "10": -1, "13": -1, "32": -1},
        response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}})
    assert json.loads(answer.choices[0].message.content) == {"n": 7}


def others():
    answer = client.completions.create(model="script", prompt="A", max_tokens=2)
    assert answer.choices[0].text == "BC"
    assert [model.id for model in client.models.list()][0] == "script"
    assert client.models.retrieve("script").id == "script"


def responses():
    first = client.responses.create(model="script", input="A", max_output_tokens=2)
    assert first.output_text == "BC", first
    second = client.responses.create(
        model="script", input="F", previous_response_id=first.id, max_output_tokens=2)
    assert second.output_text == "GH"
    assert client.responses.retrieve(first.id).output_text == "BC"
    client.responses.delete(first.id)
    with client.responses.stream(model="script", input="A") as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        assert text == "BCDEFGHIJKLMNOPQRSTUVWXYZ"
        assert stream.get_final_response().status == "completed"


def errors():
    for wrong, kind in [({"model": "other"}, openai.NotFoundError), ({"temperature": -1}, openai.BadRequestError)]:
        try:
            client.chat.completions.create(**{"model": "script", "messages": said("A"), **wrong})
            raise SystemExit(f"{wrong} was taken")
        except kind as error:
            assert error.body["message"], error
    try:
        openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="wrong", max_retries=0).models.list()
        raise SystemExit("a wrong key was taken")
    except openai.AuthenticationError as error:
        assert error.code == "invalid_api_key"


for test in [chats, streams, tools, formats, others, responses, errors]:
    test()
    print(f"{test.__name__}: ok")
