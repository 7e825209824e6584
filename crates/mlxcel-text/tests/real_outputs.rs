//! Published chat templates write a call; what they write is parsed back and must be the same call. The templates lie
//! where `MLXCEL_TEST_LLAMA_CPP` says (`cargo xtask test` fetches them and says so).

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use mlxcel_text::{
    ChatRequest, ChatTemplate, EncodeOptions, ForcedCalls, GrammarLimits, Grammars, OutputEvent,
    OutputFormat, OutputParser, ReasoningStyle, SpecialTokens, Tokenizer, ToolChoice, ToolSet, ToolSyntax,
    Vocabulary,
};
use serde_json::{Value, json};

const VARIABLE: &str = "MLXCEL_TEST_LLAMA_CPP";

/// How many templates write calls in a form that is known.
const TEMPLATES: usize = 33;

/// Templates that leave out a call beside a text, or the text, or (gpt-oss) take the text for reasoning.
const CALL_OR_TEXT: &[&str] = &[
    "Mistral-Small-3.2-24B-Instruct-2506.jinja",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use.jinja",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use.jinja",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B.jinja",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B.jinja",
    "llama-cpp-deepseek-r1.jinja",
    "meta-llama-Llama-3.1-8B-Instruct.jinja",
    "meta-llama-Llama-3.2-3B-Instruct.jinja",
    "meta-llama-Llama-3.3-70B-Instruct.jinja",
    "mistralai-Mistral-Nemo-Instruct-2407.jinja",
    "openai-gpt-oss-120b.jinja",
];

fn tools() -> Vec<Value> {
    let parameters = json!({
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Where"},
            "days": {"type": "integer", "description": "How many"},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["city"],
    });
    let function = json!({"name": "get_weather", "description": "Weather", "parameters": parameters});
    vec![json!({"type": "function", "function": function})]
}

fn arguments() -> Value {
    json!({"city": "Zürich \"old\" town\n</b>", "days": 3, "tags": ["a", "{b}"]})
}

fn conversation(arguments: &Value, content: Option<&str>) -> Vec<Value> {
    let function = json!({"name": "get_weather", "arguments": arguments});
    vec![
        json!({"role": "user", "content": "Hello"}),
        json!({
            "role": "assistant",
            "content": content,
            "tool_calls": [{"id": "abcdefghi", "type": "function", "function": function}],
        }),
    ]
}

fn render(template: &ChatTemplate, messages: &[Value], add_generation_prompt: bool) -> Option<String> {
    let request = ChatRequest {
        messages: messages.to_vec(),
        tools: Some(tools()),
        add_generation_prompt,
        now: Some(SystemTime::UNIX_EPOCH),
        ..ChatRequest::default()
    };
    template.render(&request).ok()
}

/// What the template lets the assistant write, without the end of the turn, and the prompt before it.
fn written(template: &ChatTemplate, messages: &[Value]) -> Option<(String, String)> {
    let prompt = render(template, &messages[..1], true)?;
    let whole = render(template, messages, false)?;
    let start = cut(&prompt, &whole);
    let mut answer = whole[start..].split("<｜end▁of▁sentence｜>").next()?;
    for end in turn_ends(template, &messages[0]) {
        answer = answer.strip_suffix(end.as_str()).unwrap_or(answer);
    }
    Some((prompt[..start].to_owned(), answer.to_owned()))
}

/// Where the prompt and the whole part; before a mark that only begins alike.
fn cut(prompt: &str, whole: &str) -> usize {
    let shared =
        prompt.chars().zip(whole.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum();
    let beginning = &whole[..shared];
    match (beginning.rfind('<'), beginning.rfind('>')) {
        (Some(open), Some(close)) if open > close && shared < prompt.len() => open,
        _ => shared,
    }
}

/// What follows an answer that is only text, and what models write after calls.
fn turn_ends(template: &ChatTemplate, user: &Value) -> Vec<String> {
    let answer = json!({"role": "assistant", "content": "MARK"});
    let whole = render(template, &[user.clone(), answer], false).unwrap_or_default();
    let end = whole.split_once("MARK").map(|(_, end)| end.to_owned()).unwrap_or_default();
    vec![end, "<|eom_id|>".to_owned(), "<|call|>".to_owned()]
}

fn parse(format: OutputFormat, prompt: &str, answer: &str) -> (String, Vec<(String, Value)>) {
    let parser = format.parser(prompt, ToolSet::from_openai(&tools()).expect("good tools"));
    let whole = read(parser.clone(), answer);
    assert_eq!(read(parser.streamed(), answer), whole, "arguments that are streamed are the same: {answer}");
    whole
}

fn read(mut parser: OutputParser, answer: &str) -> (String, Vec<(String, Value)>) {
    let mut events = Vec::new();
    for character in answer.chars() {
        events.extend(parser.push(character.encode_utf8(&mut [0; 4])));
    }
    events.extend(parser.finish());
    let (mut content, mut calls) = (String::new(), Vec::<(String, String)>::new());
    for event in events {
        match event {
            OutputEvent::Content(text) => content += &text,
            OutputEvent::ToolCallBegin { name, .. } => calls.push((name, String::new())),
            OutputEvent::ToolCallArguments { index, text } => calls[index].1 += &text,
            OutputEvent::Reasoning(_) | OutputEvent::ToolCallEnd { .. } => {}
        }
    }
    let json = |text: String| serde_json::from_str(&text).expect("arguments are JSON");
    (content, calls.into_iter().map(|(name, arguments)| (name, json(arguments))).collect())
}

/// Whether the call and the text come back. Templates take arguments as an object or as a text.
fn comes_back(template: &ChatTemplate, format: OutputFormat, content: Option<&str>) -> bool {
    let as_text = Value::String(arguments().to_string());
    [arguments(), as_text].iter().any(|given| {
        let Some((prompt, answer)) = written(template, &conversation(given, content)) else { return false };
        let (text, calls) = parse(format, &prompt, &answer);
        calls == [("get_weather".to_owned(), arguments())] && text.trim() == content.unwrap_or_default()
    })
}

#[test]
fn calls_that_published_templates_write_are_parsed_back() {
    let Some(folder) = std::env::var_os(VARIABLE).map(|folder| PathBuf::from(folder).join("templates"))
    else {
        println!("not run, since {VARIABLE} is not set: `cargo xtask test` sets it");
        return;
    };
    let tokens =
        [("bos_token", "<s>"), ("eos_token", "</s>")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    let paths = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let (mut known, mut alone, mut both) = (0, Vec::new(), Vec::new());
    for path in paths.filter(|path| path.extension().is_some_and(|ending| ending == "jinja")) {
        let source = std::fs::read_to_string(&path).expect("a template");
        let format = OutputFormat::detect(&source);
        if format.tools.is_none() {
            continue;
        }
        known += 1;
        let template = ChatTemplate::new(&source, &tokens).expect("a template that parses");
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        if !comes_back(&template, format, None) && !comes_back(&template, format, Some("")) {
            alone.push(name.clone());
        }
        if !comes_back(&template, format, Some("Let me look.")) {
            both.push(name);
        }
    }
    both.sort();
    assert_eq!(alone, Vec::<String>::new(), "calls that did not come back");
    assert_eq!(both, CALL_OR_TEXT, "calls beside a text that did not come back");
    assert_eq!(known, TEMPLATES);
}

#[test]
fn a_forced_call_of_gpt_oss_is_made_of_control_tokens() {
    const VARIABLE: &str = "MLXCEL_TEST_TOKENIZER_GPTOSS";
    let Some(folder) = std::env::var_os(VARIABLE) else {
        println!("not run, since {VARIABLE} is not set: `cargo xtask test` sets it");
        return;
    };
    let tokenizer = Tokenizer::from_folder(&PathBuf::from(folder)).expect("a tokenizer");
    let end = tokenizer.token_id("<|call|>").expect("gpt-oss ends calls by it");
    let vocabulary = Vocabulary::new(&tokenizer, tokenizer.vocab_size(), &[end]).expect("a vocabulary");
    let grammars = Grammars::new(Arc::new(vocabulary), GrammarLimits::default());
    let tools = ToolSet::from_openai(&tools()).expect("good tools");
    let forced = ForcedCalls {
        syntax: ToolSyntax::Harmony,
        tools: &tools,
        choice: ToolChoice::Required,
        reasoning: Some(ReasoningStyle::Harmony),
        prompt: "",
        may_repeat: false,
        instead: None,
    };
    let source = forced.grammar(&tokenizer).expect("tools that can be forced");
    let text = "<|channel|>analysis<|message|>The user asks.<|end|><|start|>assistant<|channel|>commentary \
                to=functions.get_weather <|constrain|>json<|message|>{\"city\": \"Zürich\"}<|call|>";
    let follows = |special_tokens: SpecialTokens| {
        let mut matcher = grammars.get(&source).expect("a grammar").matcher();
        let options = EncodeOptions { special_tokens, add_special_tokens: false };
        let tokens = tokenizer.encode(text, options).expect("tokens");
        tokens.iter().all(|&token| matcher.accept(token).is_ok()) && matcher.is_complete()
    };
    assert!(follows(SpecialTokens::Parse));
    assert!(!follows(SpecialTokens::AsText), "the marks spelled out are not the marks");
}
