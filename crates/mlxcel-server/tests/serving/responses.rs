//! OpenAI's responses: stateless, kept, and streamed.

use serde_json::{Value, json};

use crate::house::{House, Plan};

const RESPONSES: &str = "/v1/responses";

fn text_of(response: &Value) -> &str {
    response["output"][0]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{response}"))
}

#[test]
fn a_response_is_made_kept_and_forgotten() {
    let house = House::new();
    let json = house.client.post(RESPONSES, &json!({"input": "A", "max_output_tokens": 3})).json();
    assert_eq!((text_of(&json), &json["status"]), ("BCD", &json!("incomplete")));
    assert_eq!(json["incomplete_details"]["reason"], "max_output_tokens");
    assert_eq!(json["usage"]["output_tokens"], 3);
    let id = json["id"].as_str().unwrap();
    let path = format!("{RESPONSES}/{id}");
    assert_eq!(house.client.get(&path).json(), json);
    assert_eq!(house.client.request("DELETE", &path, &[], b"").json()["deleted"], true);
    assert_eq!(house.client.get(&path).status, 404);
    let json = house.client.post(RESPONSES, &json!({"input": "A", "store": false})).json();
    assert_eq!(json["status"], "completed");
    let path = format!("{RESPONSES}/{}", json["id"].as_str().unwrap());
    assert_eq!(house.client.get(&path).status, 404, "what is not to be kept is not");
}

#[test]
fn a_kept_response_is_gone_on_from() {
    let house = House::new();
    let first = house.client.post(RESPONSES, &json!({"input": "first A", "max_output_tokens": 2})).json();
    let more = json!({"input": "then F", "previous_response_id": first["id"], "max_output_tokens": 2});
    let second = house.client.post(RESPONSES, &more).json();
    assert_eq!(text_of(&second), "GH");
    let whole = json!({"input": [
        {"role": "user", "content": "first A"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "BC"}]},
        {"role": "user", "content": "then F"},
    ], "max_output_tokens": 2});
    let whole = house.client.post(RESPONSES, &whole).json();
    assert_eq!(whole["usage"]["input_tokens"], second["usage"]["input_tokens"]);
    let gone = json!({"input": "A", "previous_response_id": "resp_nothing"});
    assert_eq!(house.client.post(RESPONSES, &gone).status, 404);
}

#[test]
fn only_so_many_responses_are_kept() {
    let mut plan = Plan::default();
    plan.config.limits.stored = 2;
    let house = House::build(plan);
    let make =
        || house.client.post(RESPONSES, &json!({"input": "A", "max_output_tokens": 1})).json()["id"].clone();
    let ids = [make(), make(), make()];
    let status = |id: &Value| house.client.get(&format!("{RESPONSES}/{}", id.as_str().unwrap())).status;
    assert_eq!(ids.each_ref().map(status), [404, 200, 200]);
}

#[test]
fn a_stream_is_numbered_events_that_end_with_the_whole() {
    let house = House::new();
    let answer = house.client.post(RESPONSES, &json!({"input": "3", "stream": true}));
    let chunks = answer.chunks();
    let names: Vec<String> = answer.events().into_iter().map(|(name, _)| name).collect();
    assert_eq!(
        (names[0].as_str(), names.last().unwrap().as_str()),
        ("response.created", "response.completed")
    );
    for (number, (chunk, name)) in chunks.iter().zip(&names).enumerate() {
        assert_eq!((&chunk["sequence_number"], &chunk["type"]), (&json!(number), &json!(name)));
    }
    let deltas = |kind: &str| -> String {
        chunks.iter().filter(|c| c["type"] == kind).map(|c| c["delta"].as_str().unwrap()).collect()
    };
    assert_eq!(deltas("response.reasoning_text.delta"), "let me see");
    assert_eq!(deltas("response.output_text.delta"), "the answer");
    let whole = &chunks.last().unwrap()["response"];
    assert_eq!(
        (&whole["output"][0]["type"], &whole["output"][1]["type"]),
        (&json!("reasoning"), &json!("message"))
    );
    let kept = house.client.get(&format!("{RESPONSES}/{}", whole["id"].as_str().unwrap())).json();
    assert_eq!(&kept, whole);
}

#[test]
fn a_function_is_called_and_its_output_taken() {
    let house = House::new();
    let tools = json!([{"type": "function", "name": "weather", "parameters": {"type": "object"}}]);
    let json = house.client.post(RESPONSES, &json!({"input": "1", "tools": tools})).json();
    let call = &json["output"][0];
    assert_eq!((&call["type"], &call["name"]), (&json!("function_call"), &json!("weather")), "{json}");
    assert_eq!(
        serde_json::from_str::<Value>(call["arguments"].as_str().unwrap()).unwrap(),
        json!({"city": "Bern"})
    );
    let output = json!({"type": "function_call_output", "call_id": call["call_id"], "output": "sunny A"});
    let more = json!({"input": [output], "previous_response_id": json["id"], "max_output_tokens": 1});
    assert_eq!(text_of(&house.client.post(RESPONSES, &more).json()), "B");
}

#[test]
fn a_format_is_followed() {
    let house = House::new();
    let format = json!({"type": "json_schema", "name": "n", "schema": {"const": 7}, "strict": true});
    let json = house.client.post(RESPONSES, &json!({"input": "A", "text": {"format": format}})).json();
    assert_eq!(text_of(&json), "7");
}

#[test]
fn what_cannot_be_honoured_is_refused_by_name() {
    let house = House::new();
    for (field, value) in [
        ("truncation", json!("auto")),
        ("background", json!(true)),
        ("include", json!(["message.output_text.logprobs"])),
        ("max_output_tokens", json!(0)),
        ("temperature", json!(-1)),
        ("tools", json!([{"type": "web_search"}])),
        ("service_tier", json!("flex")),
        ("conversation", json!("c")),
        ("input", json!([])),
        ("input", json!(7)),
        ("input", json!([{"type": "computer_call"}])),
    ] {
        let mut body = json!({"input": "A"});
        body[field] = value;
        let answer = house.client.post(RESPONSES, &body);
        assert_eq!(answer.status, 400, "{field}: {}", answer.text());
        let error = answer.json()["error"].to_string();
        assert!(error.contains(field), "{error}");
    }
    house.assert_sound();
}
