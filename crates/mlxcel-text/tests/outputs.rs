//! What models write, taken apart: examples of every form, cut anywhere, and what only looks like a call.

mod support;

use std::sync::Arc;

use mlxcel_text::{
    Error, ForcedCalls, GrammarLimits, GrammarSource, Grammars, OutputEvent, OutputFormat, OutputParser,
    ReasoningStyle, SpecialTokens, Tokenizer, ToolChoice, ToolSet, ToolSyntax, Vocabulary,
};
use proptest::prelude::*;
use serde_json::{Value, json};

/// What an answer comes to.
#[derive(Clone, Debug, Default, PartialEq)]
struct Answer {
    content: String,
    reasoning: String,
    calls: Vec<(Option<String>, String, String)>,
}

fn answer(content: &str, reasoning: &str, calls: &[(&str, &str)]) -> Answer {
    let calls = calls.iter().map(|(name, arguments)| (None, (*name).to_owned(), (*arguments).to_owned()));
    Answer { content: content.to_owned(), reasoning: reasoning.to_owned(), calls: calls.collect() }
}

fn function(name: &str, parameters: Value) -> Value {
    json!({"type": "function", "function": {"name": name, "parameters": parameters}})
}

fn tools() -> ToolSet {
    let city = json!({
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
        "additionalProperties": false,
    });
    let tools = [function("weather", city), function("time", json!({"type": "object", "properties": {}}))];
    ToolSet::from_openai(&tools).expect("good tools")
}

fn format(tools: ToolSyntax, reasoning: Option<ReasoningStyle>) -> OutputFormat {
    OutputFormat { tools: Some(tools), reasoning }
}

/// Parses a text in portions of so many characters, the last length repeated.
fn parse(format: OutputFormat, prompt: &str, text: &str, portions: &[usize]) -> Answer {
    read(format.parser(prompt, tools()), text, portions)
}

/// The same with the arguments of calls as they come.
fn parse_streamed(format: OutputFormat, prompt: &str, text: &str, portions: &[usize]) -> Answer {
    read(format.parser(prompt, tools()).streamed(), text, portions)
}

fn read(mut parser: OutputParser, text: &str, portions: &[usize]) -> Answer {
    let (mut answer, mut rest, mut portions) = (Answer::default(), text, portions.iter());
    let mut last = usize::MAX;
    let mut open = None;
    let mut take = |events: Vec<OutputEvent>| {
        for event in events {
            match event {
                OutputEvent::Content(text) => answer.content += &text,
                OutputEvent::Reasoning(text) => answer.reasoning += &text,
                OutputEvent::ToolCallBegin { index, id, name } => {
                    assert_eq!((index, open), (answer.calls.len(), None));
                    open = Some(index);
                    answer.calls.push((id, name, String::new()));
                }
                OutputEvent::ToolCallArguments { index, text } => {
                    assert_eq!(open, Some(index));
                    answer.calls[index].2 += &text;
                }
                OutputEvent::ToolCallEnd { index } => assert_eq!(open.take(), Some(index)),
            }
        }
    };
    while !rest.is_empty() {
        last = portions.next().copied().unwrap_or(last).max(1);
        let at = rest.char_indices().nth(last).map_or(rest.len(), |(at, _)| at);
        take(parser.push(&rest[..at]));
        rest = &rest[at..];
    }
    take(parser.finish());
    assert_eq!(open, None);
    answer
}

/// A form, the end of the prompt, an answer, and what it comes to. The forms are those that the models' makers publish.
type Example = (OutputFormat, &'static str, &'static str, Answer);

fn examples() -> Vec<Example> {
    examples_of_open_marks().into_iter().chain(examples_of_control_tokens()).collect()
}

/// Forms whose marks are text, mostly.
fn examples_of_open_marks() -> Vec<Example> {
    use ReasoningStyle::Think;
    use ToolSyntax::{Glm, Hermes, Llama3, QwenXml};
    let weather = r#"{"city": "Zürich", "days": 2}"#;
    let call = [("weather", weather)];
    let compact = [("weather", r#"{"city":"Zürich","days":2}"#)];
    let two = [("weather", weather), ("time", "{}")];
    vec![
        (
            format(Hermes, Some(Think)),
            "",
            "<think>\nHm.\n</think>\n\nI look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \
             \"Zürich\", \"days\": 2}}\n</tool_call>\n<tool_call>\n{\"name\": \"time\", \"arguments\": {}}\n</tool_call>",
            answer("I look.", "Hm.", &two),
        ),
        (
            format(Hermes, Some(Think)),
            "…<think>\n",
            "It is </thin> only.\n</think>\n\n{\"a\": 1} < 2\n",
            answer("{\"a\": 1} < 2\n", "It is </thin> only.", &[]),
        ),
        (
            format(Hermes, None),
            "",
            "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"</tool_call>\"}}",
            answer("", "", &[("weather", r#"{"city": "</tool_call>"}"#)]),
        ),
        (
            format(QwenXml, None),
            "",
            "<tool_call>\n<function=weather>\n<parameter=city>\nZürich\n</parameter>\n<parameter=days>\n2\n</parameter>\n\
             </function>\n</tool_call>",
            answer("", "", &compact),
        ),
        (
            format(Glm, Some(Think)),
            "",
            "<think></think>\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Zürich</arg_value>\n\
             <arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
            answer("", "", &compact),
        ),
        (
            format(Llama3, None),
            "",
            "<|python_tag|>{\"name\": \"weather\", \"parameters\": {\"city\": \"Zürich\", \"days\": 2}}; \
             {\"name\": \"time\", \"parameters\": {}}",
            answer("", "", &two),
        ),
        (
            format(Llama3, None),
            "",
            "{\"name\": \"weather\", \"parameters\": {\"city\": \"Zürich\", \"days\": 2}}",
            answer("", "", &call),
        ),
    ]
}

/// Forms whose marks are control tokens.
fn examples_of_control_tokens() -> Vec<Example> {
    use ReasoningStyle::{Bracket, Think};
    use ToolSyntax::{DeepSeek, DeepSeek31, Mistral, MistralList};
    let weather = r#"{"city": "Zürich", "days": 2}"#;
    let call = [("weather", weather)];
    let two = [("weather", weather), ("time", "{}")];
    vec![
        (
            format(MistralList, None),
            "",
            "[TOOL_CALLS] [{\"name\": \"weather\", \"arguments\": {\"city\": \"Zürich\", \"days\": 2}}, \
             {\"name\": \"time\", \"arguments\": {}}]",
            answer("", "", &two),
        ),
        (
            format(Mistral, Some(Bracket)),
            "",
            "[THINK]Hm.[/THINK][TOOL_CALLS]weather[ARGS]{\"city\": \"Zürich\", \"days\": 2}[TOOL_CALLS]time[ARGS]{}",
            answer("", "Hm.", &two),
        ),
        (
            format(DeepSeek, Some(Think)),
            "<think>\n",
            "Hm.</think>I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n\
             {\"city\": \"Zürich\", \"days\": 2}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>time\n\
             ```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            answer("I look.", "Hm.", &two),
        ),
        (
            format(DeepSeek31, Some(Think)),
            "</think>",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"Zürich\", \"days\": 2}\
             <｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            answer("", "", &call),
        ),
        (
            format(ToolSyntax::Harmony, Some(ReasoningStyle::Harmony)),
            "<|start|>assistant",
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>\
             <|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{\"city\": \
             \"Zürich\", \"days\": 2}<|call|>",
            answer("I look.", "Hm.", &call),
        ),
        (
            format(ToolSyntax::Harmony, Some(ReasoningStyle::Harmony)),
            "<|start|>assistant",
            " to=functions.weather<|channel|>commentary json<|message|>{\"city\": \"Zürich\", \"days\": 2}",
            answer("", "", &call),
        ),
        (
            format(ToolSyntax::Harmony, Some(ReasoningStyle::Harmony)),
            "<|start|>assistant",
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>It < rains.",
            answer("It < rains.", "Hm.", &[]),
        ),
    ]
}

/// Texts that begin like calls and are none.
fn malformed() -> Vec<(ToolSyntax, &'static str)> {
    use ToolSyntax::{DeepSeek, Glm, Harmony, Hermes, Llama3, Mistral, MistralList, QwenXml};
    vec![
        (Hermes, "Write <tool_call> before and </tool_call> after.\n"),
        (Hermes, " <tool_call>\n{\"name\": \"weather\", \"arguments\": [}\n</tool_call> "),
        (Hermes, "<tool_call>{\"name\": \"weather\", \"arguments\": {}} and more</tool_call>"),
        (Hermes, "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Zü"),
        (Hermes, "\n<tool_call></tool_call>\n<tool_ca"),
        (QwenXml, "<tool_call>\n<function=weather>\n<parameter=city>\nZ\n</function>\n</tool_call>"),
        (Glm, "<tool_call>weather\n<arg_key>city</arg_key>Z</tool_call>\n"),
        (Llama3, "{\"temperature\": 3, \"name\": \"weather\"}"),
        (Llama3, "{\"name\": \"nobody\", \"parameters\": {}}"),
        (Llama3, "{\"name\": \"weather\", \"parameters\": 3}\n"),
        (Llama3, "<|python_tag|>print({})"),
        (MistralList, "[TOOL_CALLS] [{\"name\": \"weather\"}, 3]"),
        (Mistral, "[TOOL_CALLS]weather[ARGS]{\"a\":}"),
        (Mistral, "[TOOL_CALLS]two words[ARGS]{}"),
        (DeepSeek, "<｜tool▁calls▁begin｜>nothing<｜tool▁calls▁end｜>"),
        (
            DeepSeek,
            "a<｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{]}\n```<｜tool▁call▁end｜>",
        ),
        (Harmony, "No mark at all < 3\n"),
        (Harmony, "<|channel|>commentary to=functions.weather<|message|>not json<|call|>"),
        (Harmony, "<|channel|>commentary to=functions.wea"),
    ]
}

#[test]
fn every_form_is_taken_apart() {
    for (format, prompt, text, expected) in examples() {
        assert_eq!(parse(format, prompt, text, &[]), expected, "{text}");
    }
}

#[test]
fn every_form_is_taken_apart_one_character_at_a_time() {
    for (format, prompt, text, expected) in examples() {
        assert_eq!(parse(format, prompt, text, &[1]), expected, "{text}");
    }
}

#[test]
fn what_only_looks_like_a_call_is_text_to_the_last_character() {
    for (syntax, text) in malformed() {
        let reasoning = (syntax == ToolSyntax::Harmony).then_some(ReasoningStyle::Harmony);
        for portions in [&[][..], &[1], &[3, 7, 2]] {
            assert_eq!(parse(format(syntax, reasoning), "", text, portions), answer(text, "", &[]), "{text}");
        }
    }
}

#[test]
fn ids_that_a_model_writes_are_kept() {
    let text = "[TOOL_CALLS]time[CALL_ID]a1b2c3d4e[ARGS]{}";
    let parsed = parse(format(ToolSyntax::Mistral, None), "", text, &[]);
    assert_eq!(parsed.calls, [(Some("a1b2c3d4e".to_owned()), "time".to_owned(), "{}".to_owned())]);
}

#[test]
fn without_tools_nothing_is_a_call() {
    let text = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {}}\n</tool_call>";
    let mut parser = format(ToolSyntax::Hermes, None).parser("", ToolSet::default());
    let mut events = parser.push(text);
    events.extend(parser.finish());
    assert_eq!(events, [OutputEvent::Content(text.to_owned())]);
}

#[test]
fn text_is_given_as_soon_as_it_is_certain() {
    let mut parser = format(ToolSyntax::Hermes, Some(ReasoningStyle::Think)).parser("<think>", tools());
    assert_eq!(parser.push("Hm"), [OutputEvent::Reasoning("Hm".to_owned())]);
    assert_eq!(parser.push("m </thi"), [OutputEvent::Reasoning("m".to_owned())]);
    assert_eq!(parser.push("nk>\n\nYes <to"), [OutputEvent::Content("Yes".to_owned())]);
    assert_eq!(parser.push("ast>"), [OutputEvent::Content(" <toast>".to_owned())]);
}

#[test]
fn streamed_arguments_come_as_they_are_written() {
    let call = |index, name: &str| OutputEvent::ToolCallBegin { index, id: None, name: name.to_owned() };
    let part = |index, text: &str| OutputEvent::ToolCallArguments { index, text: text.to_owned() };
    let end = |index| OutputEvent::ToolCallEnd { index };
    let mut parser = format(ToolSyntax::Hermes, None).parser("", tools()).streamed();
    assert_eq!(parser.push("Yes\n<tool_call>\n{\"name\": \"weath"), [OutputEvent::Content("Yes".to_owned())]);
    assert_eq!(parser.push("er\", \"arguments\": {"), [], "the opening may yet be none");
    assert_eq!(parser.push("\"ci"), [call(0, "weather"), part(0, "{\"ci")]);
    assert_eq!(parser.push("ty\": \"B}e"), [part(0, "ty\": \"B}e")]);
    assert_eq!(parser.push("rn\"}}\n</tool"), [part(0, "rn\"}")]);
    assert_eq!(parser.push("_call>\n"), [end(0)]);
    let time = "<tool_call>{\"name\": \"time\", \"arguments\": {}}</tool_call>";
    assert_eq!(parser.push(time), [call(1, "time"), part(1, "{}"), end(1)]);
    let mut parser = format(ToolSyntax::Llama3, None).parser("", tools()).streamed();
    assert_eq!(parser.push("{\"type\": \"function\", \"name\": \"time\", \"parameters\": "), []);
    assert_eq!(parser.push("{\"a\""), [call(0, "time"), part(0, "{\"a\"")]);
    assert_eq!(parser.push(": 1}}; "), [part(0, ": 1}"), end(0)]);
}

#[test]
fn streamed_arguments_that_break_end_their_call_and_what_follows_is_text() {
    let before = "<tool_call>{\"name\": \"weather\", \"arguments\": ";
    for (rest, arguments, content) in [
        ("{\"city\": Bern}}</tool_call>", "{\"city\": Bern", "}}</tool_call>"),
        ("{\"city\": \"B\"} and}</tool_call>", "{\"city\": \"B\"}", " and}</tool_call>"),
        ("{\"city\": \"Zü", "{\"city\": \"Zü", ""),
        ("{\"city\": \"B\"}", "{\"city\": \"B\"}", ""),
    ] {
        for portions in [&[][..], &[1], &[7, 2]] {
            let text = format!("{before}{rest}");
            let parsed = parse_streamed(format(ToolSyntax::Hermes, None), "", &text, portions);
            assert_eq!(parsed, answer(content.trim_start(), "", &[("weather", arguments)]), "{text}");
        }
    }
    // What is wrong from its opening on, or names no tool, is text as ever.
    for rest in ["{broken}}</tool_call>", "{,", "[1]}</tool_call>"] {
        let text = format!("{before}{rest}");
        let parsed = parse_streamed(format(ToolSyntax::Hermes, None), "", &text, &[1]);
        assert_eq!(parsed, answer(&text, "", &[]));
    }
    let nobody = "{\"name\": \"nobody\", \"parameters\": {\"a\": 1}}";
    let parsed = parse_streamed(format(ToolSyntax::Llama3, None), "", nobody, &[1]);
    assert_eq!(parsed, answer(nobody, "", &[]));
}

#[test]
fn a_header_that_goes_on_and_on_is_text() {
    let text = format!("<|channel|>{}<|message|>x", "final ".repeat(400));
    for portions in [&[][..], &[1], &[700, 3]] {
        let parsed = parse(format(ToolSyntax::Harmony, Some(ReasoningStyle::Harmony)), "", &text, portions);
        assert_eq!(parsed, answer(&text, "", &[]));
    }
}

#[test]
fn a_call_with_a_megabyte_of_arguments_is_read_in_small_portions() {
    let code = "if (a[0] > 1) { b(\\\"}\\\"); }\\n".repeat(30_000);
    for (syntax, before, after) in [
        (ToolSyntax::Hermes, "<tool_call>{\"name\": \"weather\", \"arguments\": ", "}</tool_call>"),
        (ToolSyntax::Llama3, "{\"name\": \"weather\", \"parameters\": ", "}"),
        (ToolSyntax::Mistral, "[TOOL_CALLS]weather[ARGS]", ""),
        (ToolSyntax::Harmony, "<|channel|>commentary to=functions.weather<|message|>", "<|call|>"),
    ] {
        let arguments = format!("{{\"city\":\"{code}\"}}");
        let text = format!("{before}{arguments}{after}");
        for parse in [parse, parse_streamed] {
            let parsed = parse(format(syntax, None), "", &text, &[5]);
            assert!(parsed == answer("", "", &[("weather", &arguments)]), "{syntax:?}");
        }
    }
}

#[test]
fn tools_that_make_no_sense_are_refused() {
    let invalid = |tools: &[Value]| ToolSet::from_openai(tools).expect_err("refused");
    let twice = [function("a", json!({})), function("a", json!({}))];
    assert!(matches!(invalid(&twice), Error::DuplicateTool { name } if name == "a"));
    let many: Vec<Value> = (0..5000).map(|index| function(&format!("f{index}"), json!({}))).collect();
    assert!(matches!(invalid(&many), Error::TooManyTools { found: 5000, .. }));
    for tool in [
        json!(3),
        json!({"type": "retrieval"}),
        json!({"type": "function", "function": {"parameters": {}}}),
        function("", json!({})),
        function("two words", json!({})),
        function(&"x".repeat(500), json!({})),
        function("f", json!([])),
        function("f", json!({"type": "string"})),
        function("f", json!({"properties": 3})),
    ] {
        let error = invalid(&[function("good", json!({})), tool.clone()]);
        assert!(matches!(error, Error::ToolInvalid { index: 1, .. }), "{tool}: {error}");
    }
}

proptest! {
    #[test]
    fn any_portions_give_what_the_whole_gives(
        which in 0usize..14,
        portions in proptest::collection::vec(1usize..30, 1..20),
    ) {
        let (format, prompt, text, expected) = examples().swap_remove(which);
        prop_assert_eq!(&parse(format, prompt, text, &portions), &expected);
        prop_assert_eq!(parse_streamed(format, prompt, text, &portions), expected);
    }

    #[test]
    fn any_mixture_of_marks_gives_the_same_in_any_portions(
        which in 0usize..14,
        pieces in proptest::collection::vec((0usize..14, 0usize..60, 0usize..60), 1..8),
        portions in proptest::collection::vec(1usize..9, 1..20),
    ) {
        let examples = examples();
        let part = |&(which, start, len): &(usize, usize, usize)| -> String {
            examples[which].2.chars().skip(start).take(len).collect()
        };
        let text: String = pieces.iter().map(part).collect();
        let (format, prompt, ..) = examples[which];
        for parse in [parse, parse_streamed] {
            prop_assert_eq!(parse(format, prompt, &text, &portions), parse(format, prompt, &text, &[]));
        }
    }

    #[test]
    fn text_without_marks_is_content_to_the_last_character(text in "[a-z{}\\[\\]\" \n<>:,]{0,80}") {
        for syntax in [ToolSyntax::Hermes, ToolSyntax::Mistral, ToolSyntax::Llama3, ToolSyntax::DeepSeek] {
            let parsed = parse(format(syntax, Some(ReasoningStyle::Think)), "", &text, &[2, 1, 5]);
            prop_assert_eq!(parsed, answer(&text, "", &[]));
        }
    }
}

fn grammars(tokenizer: &Tokenizer) -> Grammars {
    let vocabulary = Vocabulary::new(tokenizer, tokenizer.vocab_size(), &tokenizer.end_ids());
    Grammars::new(Arc::new(vocabulary.expect("a small vocabulary")), GrammarLimits::default())
}

fn follows(grammars: &Grammars, source: &GrammarSource, text: &str) -> bool {
    let grammar = grammars.get(source).unwrap_or_else(|error| panic!("{source:?}: {error}"));
    let mut matcher = grammar.matcher();
    let options =
        mlxcel_text::EncodeOptions { special_tokens: SpecialTokens::Parse, add_special_tokens: false };
    let tokens = grammars.vocabulary().tokenizer().encode(text, options).expect("any text has tokens");
    tokens.iter().all(|&token| matcher.accept(token).is_ok()) && matcher.may_end().expect("a position")
}

fn forced<'a>(format: OutputFormat, tools: &'a ToolSet, prompt: &'a str) -> ForcedCalls<'a> {
    let syntax = format.tools.expect("a form of calls");
    let reasoning = format.reasoning;
    let choice = ToolChoice::Required;
    ForcedCalls { syntax, tools, choice, reasoning, prompt, may_repeat: true, instead: None }
}

/// An answer that is one call, as each form writes it.
fn single_calls() -> [(ToolSyntax, &'static str); 9] {
    use ToolSyntax::{DeepSeek, DeepSeek31, Glm, Harmony, Hermes, Llama3, Mistral, MistralList, QwenXml};
    [
        (Hermes, "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\":\"Ä\"}}\n</tool_call>"),
        (
            QwenXml,
            "<tool_call>\n<function=weather>\n<parameter=city>\nÄ\n</parameter>\n</function>\n</tool_call>",
        ),
        (Glm, "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Ä</arg_value>\n</tool_call>"),
        (Llama3, "{\"name\": \"weather\", \"parameters\": {\"city\":\"Ä\"}}"),
        (MistralList, "[TOOL_CALLS][{\"name\": \"weather\", \"arguments\": {\"city\":\"Ä\"}}]"),
        (Mistral, "[TOOL_CALLS]weather[ARGS]{\"city\":\"Ä\"}"),
        (
            DeepSeek,
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\":\"Ä\"}\n```\
             <｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ),
        (
            DeepSeek31,
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\":\"Ä\"}<｜tool▁call▁end｜>\
             <｜tool▁calls▁end｜>",
        ),
        (Harmony, "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{\"city\":\"Ä\"}"),
    ]
}

#[test]
fn a_forced_answer_is_a_call_in_the_form_of_the_model() {
    let tokenizer = support::folder("bpe");
    let (grammars, tools) = (grammars(&tokenizer), tools());
    for (syntax, text) in single_calls() {
        let reasoning = (syntax == ToolSyntax::Harmony).then_some(ReasoningStyle::Harmony);
        let format = format(syntax, reasoning);
        let source = forced(format, &tools, "").grammar(&tokenizer).expect("tools that can be forced");
        assert!(follows(&grammars, &source, text), "{text}\n{source:?}");
        assert_eq!(parse(format, "", text, &[1]), answer("", "", &[("weather", "{\"city\":\"Ä\"}")]));
        for other in ["Hello", &text.replace("city", "town"), &text.replace("weather", "clock")] {
            assert!(!follows(&grammars, &source, other), "{other}\n{source:?}");
        }
    }
}

#[test]
fn a_forced_answer_may_reason_first_and_call_again() {
    let tokenizer = support::folder("bpe");
    let (grammars, tools) = (grammars(&tokenizer), tools());
    let format = format(ToolSyntax::Hermes, Some(ReasoningStyle::Think));
    let call = "<tool_call>\n{\"name\": \"time\", \"arguments\": {}}\n</tool_call>";
    let source =
        |prompt| forced(format, &tools, prompt).grammar(&tokenizer).expect("tools that can be forced");
    let (open, closed) = (source("<think>\n"), source("assistant\n"));
    assert!(follows(&grammars, &open, &format!("Hm. </thin>\n</think>\n\n{call}\n{call}")));
    assert!(!follows(&grammars, &open, call));
    assert!(follows(&grammars, &closed, &format!("<think>\nHm.\n</think>\n\n{call}")));
    assert!(follows(&grammars, &closed, call));
    let once = ForcedCalls { may_repeat: false, ..forced(format, &tools, "") };
    let once = once.grammar(&tokenizer).expect("tools that can be forced");
    assert!(!follows(&grammars, &once, &format!("{call}\n{call}")));
}

#[test]
fn an_answer_by_a_schema_may_come_after_reasoning() {
    let tokenizer = support::folder("bpe");
    let grammars = grammars(&tokenizer);
    let schema = GrammarSource::JsonSchema(json!({"type": "array", "items": {"type": "integer"}}));
    let constrained = |reasoning, source: &GrammarSource, prompt| {
        OutputFormat { tools: None, reasoning }.constrain(source.clone(), prompt, &tokenizer)
    };
    assert_eq!(constrained(None, &schema, ""), schema);
    let think = Some(ReasoningStyle::Think);
    let open = constrained(think, &schema, "<think>\n");
    assert!(follows(&grammars, &open, "Say [x].</think>\n\n[1, 2]"));
    assert!(!follows(&grammars, &open, "[1, 2]"), "the reasoning is open and has to be closed");
    assert!(!follows(&grammars, &open, "Say [x].</think>\n\n{}"));
    assert_eq!(constrained(think, &schema, "<think>\n\n</think>\n\n"), schema);
    let never = constrained(think, &GrammarSource::JsonSchema(json!(false)), "<think>");
    assert!(matches!(grammars.get(&never), Err(Error::GrammarRefused { .. })));
    let harmony = constrained(Some(ReasoningStyle::Harmony), &GrammarSource::JsonObject, "");
    let text =
        "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>final<|message|>{\"a\": 1}";
    assert!(follows(&grammars, &harmony, text));
    assert_eq!(
        parse(format(ToolSyntax::Harmony, Some(ReasoningStyle::Harmony)), "", text, &[3]),
        answer("{\"a\": 1}", "Hm", &[])
    );
    let date = constrained(think, &GrammarSource::Regex(r"\d{4}/\d{2}".to_owned()), "<think>");
    assert!(follows(&grammars, &date, "a</think>2026/11"));
    assert!(!follows(&grammars, &date, "a</think>2026/1"));
}

#[test]
fn a_named_tool_is_the_only_one() {
    let tokenizer = support::folder("bpe");
    let (grammars, tools) = (grammars(&tokenizer), tools());
    let named = |name: &str| ForcedCalls {
        choice: ToolChoice::Named(name.to_owned()),
        ..forced(format(ToolSyntax::Hermes, None), &tools, "")
    };
    let source = named("time").grammar(&tokenizer).expect("a tool");
    let call =
        |name: &str| format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {{}}}}\n</tool_call>");
    assert!(follows(&grammars, &source, &call("time")));
    assert!(!follows(&grammars, &source, &call("weather")));
    assert!(
        matches!(named("nobody").grammar(&tokenizer), Err(Error::UnknownTool { name }) if name == "nobody")
    );
    let none = ToolSet::default();
    let empty = forced(format(ToolSyntax::Hermes, None), &none, "");
    assert!(matches!(empty.grammar(&tokenizer), Err(Error::NoTools)));
}

#[test]
fn an_answer_may_be_a_call_or_follow_a_schema() {
    let tokenizer = support::folder("bpe");
    let (grammars, tools) = (grammars(&tokenizer), tools());
    let schema = GrammarSource::JsonSchema(json!({"type": "array", "items": {"type": "integer"}}));
    for (syntax, call) in single_calls() {
        let is_harmony = syntax == ToolSyntax::Harmony;
        let format = format(syntax, is_harmony.then_some(ReasoningStyle::Harmony));
        let either = ForcedCalls { instead: Some(schema.clone()), ..forced(format, &tools, "") };
        let source = either.grammar(&tokenizer);
        if syntax == ToolSyntax::Llama3 {
            assert!(matches!(source, Err(Error::AnswerLikeCall)), "{source:?}");
            continue;
        }
        let source = source.expect("tools that can be called");
        let before = if is_harmony { "<|channel|>final<|message|>" } else { "" };
        assert!(follows(&grammars, &source, call), "{call}\n{source:?}");
        assert!(follows(&grammars, &source, &format!("{before}[1, 2]")), "{source:?}");
        for other in
            [format!("{before}{{}}"), "Hello".to_owned(), format!("{call}[1]"), call.replace("city", "town")]
        {
            assert!(!follows(&grammars, &source, &other), "{other}\n{source:?}");
        }
    }
    let think = format(ToolSyntax::Hermes, Some(ReasoningStyle::Think));
    let either = ForcedCalls { instead: Some(schema), ..forced(think, &tools, "<think>\n") };
    let source = either.grammar(&tokenizer).expect("tools that can be called");
    assert!(follows(&grammars, &source, "Hm.</think>\n\n[3]"));
    assert!(!follows(&grammars, &source, "[3]"));
}
