//! `inspect`, `devices`, `--help` and `--version`.

use mlxcel_ir::Graph;
use mlxcel_weights::Checkpoint;

use crate::support::{fixture, fixture_argument, run, run_json};

#[test]
fn facts_are_those_of_the_configuration_and_the_file() {
    let llama = fixture_argument("golden/llama/f32");
    let got = run_json(&["inspect", &llama]);
    let checkpoint = Checkpoint::open(fixture("golden/llama/f32")).expect("the fixture opens");
    let tensors = checkpoint.names().map(|name| checkpoint.tensor(name).expect("a tensor"));
    let (parameters, count) = tensors.fold((0, 0), |(sum, n), t| (sum + t.to_f32().len(), n + 1));
    assert_eq!(got["family"], "llama");
    assert_eq!(got["parameters"], parameters);
    assert_eq!(got["tensors"], serde_json::json!({ "f32": count }));
    assert_eq!(got["bytes"], 4 * parameters);
    // From config.json: two layers of two key heads of 24 numbers.
    assert_eq!((&got["layers"], &got["context"], &got["vocabulary"]), (&2.into(), &512.into(), &263.into()));
    assert_eq!(got["cache_bytes_per_token"], 2 * 2 * 2 * 24 * 4);
    let narrow = run_json(&["inspect", &llama, "--dtype", "bf16"]);
    assert_eq!(narrow["cache_bytes_per_token"], 2 * 2 * 2 * 24 * 2);
}

#[test]
fn every_kind_of_model_can_be_inspected() {
    for (model, layers) in
        [("golden/mamba/f32", "3"), ("golden/bert/f32", "2"), ("gguf/llama-quant.gguf", "2")]
    {
        let done = run(&["inspect", &fixture_argument(model)]);
        assert_eq!(done.code, Some(0), "{}", done.stderr);
        assert_eq!(done.stderr, "");
        let line = |name: &str| done.stdout.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        assert_eq!(line("layers"), Some(layers), "{}", done.stdout);
        assert!(line("parameters").is_some_and(|n| n.ends_with('k')), "{}", done.stdout);
    }
}

#[test]
fn memory_is_the_sum_of_weights_cache_and_activations_at_a_length() {
    let llama = fixture_argument("golden/llama/f32");
    let at = |tokens: &str| run_json(&["inspect", &llama, "--ctx-size", tokens])["memory"].clone();
    let number =
        |fit: &serde_json::Value, name: &str| fit[name].as_u64().unwrap_or_else(|| panic!("{name}: {fit}"));
    let (short, long) = (at("32"), at("512"));
    assert_eq!(run_json(&["inspect", &llama])["memory"]["context"], 512, "the model's context");
    for fit in [&short, &long] {
        let parts = ["weight_bytes", "cache_bytes", "state_bytes", "activation_bytes"];
        assert_eq!(parts.iter().map(|part| number(fit, part)).sum::<u64>(), number(fit, "total_bytes"));
        assert_eq!(
            number(fit, "weight_bytes"),
            run_json(&["inspect", &llama])["bytes"].as_u64().expect("bytes")
        );
    }
    // From config.json: two layers of two key heads of 24 numbers.
    assert_eq!(number(&short, "cache_bytes"), 32 * 2 * 2 * 2 * 24 * 4);
    assert_eq!(number(&long, "cache_bytes"), 512 * 2 * 2 * 2 * 24 * 4);
    // A step of 512 tokens holds at least the hidden states of 64 numbers, their norm and what is added to them.
    assert!((3 * 512 * 64 * 4..64 << 20).contains(&number(&long, "activation_bytes")), "{long}");
    assert!(number(&short, "activation_bytes") < number(&long, "activation_bytes"));
    if cfg!(target_os = "linux") {
        assert_eq!((&long["fits"], number(&long, "largest_context")), (&true.into(), 512));
        assert!(number(&long, "available_bytes") > number(&long, "total_bytes"));
    }
    let done = run(&["inspect", &llama, "--ctx-size", "513"]);
    assert_eq!((done.code, done.stdout.as_str()), (Some(1), ""));
    assert!(done.stderr.contains("513") && done.stderr.contains("512 tokens"), "{}", done.stderr);
}

#[test]
fn a_context_that_does_not_fit_is_told_with_the_largest_that_does() {
    let model = crate::support::ModelCopy::llama();
    let claimed: u64 = 1 << 30;
    model.configure("max_position_embeddings", claimed.into());
    let got = run_json(&["inspect", model.argument()]);
    let fit = &got["memory"];
    assert_eq!(fit["context"], claimed);
    // The cache of such a context takes 824 GB; a machine that has them shows nothing here.
    if let Some(available) = fit["available_bytes"].as_u64().filter(|&bytes| bytes < 824_000_000_000) {
        assert_eq!(fit["fits"], false);
        let largest = fit["largest_context"].as_u64().expect("a number");
        let per_token = got["cache_bytes_per_token"].as_u64().expect("a number");
        assert!(largest > 0 && largest * per_token <= available, "{fit}");
        assert!((largest + 32) * per_token * 2 > available, "much more would fit: {fit}");
        let text = run(&["inspect", model.argument()]).stdout;
        assert!(text.lines().any(|line| line.starts_with("fits ") && line.contains("no: ")), "{text}");
    }
}

#[test]
fn an_encoder_needs_no_cache_and_sees_its_text_at_once() {
    let bert = fixture_argument("golden/bert/f32");
    let at =
        |tokens: &str| run_json(&["inspect", &bert, "-c", tokens])["memory"]["activation_bytes"].as_u64();
    let (short, long) = (at("8").expect("known"), at("32").expect("known"));
    assert!(short * 3 < long, "{short} {long}");
    assert_eq!(run_json(&["inspect", &bert])["memory"]["cache_bytes"], 0);
    let unknown = run_json(&["inspect", &bert, "--engine", "reference"]);
    assert!(unknown["memory"]["activation_bytes"].is_null(), "{unknown}");
}

#[test]
fn the_graph_is_printed_in_a_form_that_parses() {
    let done = run(&["inspect", &fixture_argument("golden/qwen3_moe/f32"), "--graph"]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let graph: Graph = done.stdout.parse().expect("the text form parses");
    assert_eq!(graph.to_string().trim_end(), done.stdout.trim_end());
    assert!(graph.outputs().iter().any(|(name, _)| name == "logits"));
}

#[test]
fn the_plan_lists_every_op_with_the_engines_choice_and_adds_up() {
    let llama = fixture_argument("golden/llama/f32");
    let graph: Graph = run(&["inspect", &llama, "--graph"]).stdout.parse().expect("the text form parses");
    let graph = mlxcel_ir::passes::optimize(&graph).expect("the graph is well formed");
    let ops = graph.nodes().iter().filter(|node| !node.op.is_leaf()).count();
    for (engine, linear) in [("cpu", "native"), ("reference", "decomposed")] {
        let plan = run_json(&["inspect", &llama, "--plan", "--engine", engine]);
        let lines = plan["ops"].as_array().expect("ops");
        assert_eq!(lines.len(), ops);
        for name in ["bytes", "flops"] {
            let sum: u64 = lines.iter().filter_map(|line| line[name].as_u64()).sum();
            assert_eq!(plan[format!("total_{name}")], sum);
        }
        let q = lines
            .iter()
            .find(|line| line["label"] == "model.layers.0.self_attn.q_proj")
            .expect("a projection");
        assert_eq!((&q["op"], &q["choice"]), (&"linear".into(), &linear.into()));
        // 4 heads of 24 from 64 numbers, with a bias: the weight, the bias, the row and the result, in f32.
        assert_eq!(q["bytes"], 4 * (96 * 64 + 96 + 64 + 96));
        assert_eq!(q["flops"], 96 * (2 * 64 + 1));
        assert_eq!(q["results"], serde_json::json!(["f32[tokens, 96]"]));
    }
}

#[test]
fn the_plan_is_an_aligned_table() {
    let done = run(&["inspect", &fixture_argument("golden/llama/f32"), "--plan"]);
    let mut lines = done.stdout.lines();
    let title = lines.next().expect("a title");
    assert!(title.starts_with("plan of the cpu engine") && title.contains("tokens = 1"), "{title}");
    let header = lines.next().expect("a header");
    let column = header.find("choice").expect("a column for the choice");
    let (rows, total): (Vec<&str>, Vec<&str>) = lines.partition(|line| line.starts_with('%'));
    assert!(rows.len() > 30);
    for row in rows {
        assert!(row[column..].starts_with("native") || row[column..].starts_with("decomposed"), "{row}");
        assert_eq!(row.len(), header.len(), "numbers end where their column ends");
    }
    assert!(total.len() == 1 && total[0].trim_start().starts_with("total"));
}

#[test]
fn devices_refuses_what_is_no_engine_or_is_not_measured() {
    for (arguments, word) in [
        (&["devices", "--engine", "auto"][..], "a choice among engines"),
        (&["devices", "--engine", "reference", "--calibrate"], "not measured"),
    ] {
        let done = run(arguments);
        assert_eq!((done.code, done.stdout.as_str()), (Some(1), ""), "{arguments:?}");
        assert!(done.stderr.contains(word) && done.stderr.contains("give --engine"), "{}", done.stderr);
    }
}

#[test]
fn devices_lists_engines_with_their_machine() {
    let got = run_json(&["devices"]);
    let devices = got["devices"].as_array().expect("devices");
    // What engines load when they run differs from machine to machine.
    let is_built_in =
        |device: &&serde_json::Value| ["cpu", "reference"].map(Into::into).contains(&device["engine"]);
    let engines: Vec<&str> =
        devices.iter().filter(is_built_in).filter_map(|d| d["engine"].as_str()).collect();
    assert_eq!(engines, ["cpu", "reference"]);
    let known = ["cpu", "reference", "cuda", "mlx", "xla"];
    assert!(devices.iter().all(|d| d["engine"].as_str().is_some_and(|name| known.contains(&name))));
    assert!(devices.iter().filter(is_built_in).all(|device| device["device"] == "cpu"));
    for device in devices {
        assert!(device["cores"].as_u64().is_some_and(|n| n > 0));
        assert!(device["simd"].is_string() && device["description"].is_string());
    }
    // What was measured on this machine, if anything was, is a second table.
    let text = run(&["devices"]).stdout;
    let lines = text.lines().take_while(|line| !line.is_empty()).count();
    assert!(text.starts_with("engine ") && lines == 1 + devices.len(), "{text}");
}

#[test]
fn help_and_version_are_there() {
    let version = run(&["--version"]);
    assert_eq!(
        (version.code, version.stdout.as_str()),
        (Some(0), concat!("mlxcel ", env!("CARGO_PKG_VERSION"), "\n"))
    );
    let help = run(&["--help"]);
    assert_eq!(help.code, Some(0));
    for part in ["generate", "inspect", "devices", "Examples:", "mlxcel generate -p"] {
        assert!(help.stdout.contains(part), "{part}");
    }
    assert!(run(&["generate", "--help"]).stdout.contains("--repetition-penalty"));
}
