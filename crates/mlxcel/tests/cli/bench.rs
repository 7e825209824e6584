//! `bench`: which rows and columns there are, and what is refused. No test looks at how fast anything was.

use mlxcel_weights::Checkpoint;
use serde_json::Value;

use crate::support::{finished, fixture, fixture_argument, mlxcel, run};

const LLAMA: &str = "golden/llama/f32";

/// Two depths, two numbers of sequences, every repetition as short as can be.
const SMALL: [&str; 10] = ["-p", "40", "-n", "2", "-d", "0,20", "-b", "1,3", "-r", "2"];

/// In the order of the arguments.
const TESTS: [&str; 6] = ["pp40", "tg2", "tg2 x3", "pp40 @ d20", "tg2 @ d20", "tg2 x3 @ d20"];

fn bench(model: &str, arguments: &[&str]) -> String {
    // Without what this machine may have been calibrated to.
    let nothing = tempfile::tempdir().expect("a temporary folder");
    let mut command = mlxcel(&[&["bench", "-m", &fixture_argument(model)], arguments].concat());
    let done = finished(command.env("MLXCEL_CACHE", nothing.path()).output().expect("the binary runs"));
    assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""), "{arguments:?}");
    done.stdout
}

fn bench_json(model: &str, arguments: &[&str]) -> Value {
    serde_json::from_str(&bench(model, &[arguments, &["-o", "json"]].concat())).expect("JSON")
}

fn refused(arguments: &[&str]) -> (Option<i32>, String) {
    let done = run(&[&["bench", "-m", &fixture_argument(LLAMA)], arguments].concat());
    assert_eq!(done.stdout, "", "{arguments:?}");
    (done.code, done.stderr)
}

#[test]
fn markdown_has_a_row_for_each_test_and_a_column_for_each_fact() {
    let text = bench(LLAMA, &[&SMALL[..], &["--threads", "2"]].concat());
    let (table, device) = text.split_once("\n\n").expect("the device is below the table");
    assert!(device.starts_with("device: ") && device.contains("2 threads"), "{device}");
    let rows: Vec<Vec<&str>> =
        table.lines().map(|line| line.trim_matches('|').split('|').map(str::trim).collect()).collect();
    let columns = "model size params engine threads dtype KV test tok/s median GB/s GFLOP/s";
    assert_eq!(rows[0], columns.split(' ').collect::<Vec<_>>());
    assert!(rows[1].iter().all(|cell| cell.starts_with("---")), "{table}");
    assert_eq!(rows[2..].iter().map(|row| row[7]).collect::<Vec<_>>(), TESTS);
    let width = table.lines().next().map(|line| line.chars().count());
    assert!(table.lines().all(|line| Some(line.chars().count()) == width), "{table}");
    for row in &rows[2..] {
        assert_eq!(row[3..7], ["cpu", "2", "f32", "f32"]);
        let (mean, deviation) = row[8].split_once(" ± ").expect("mean and deviation");
        for number in [mean, deviation, row[9], row[10], row[11]] {
            assert!(number.parse::<f64>().is_ok_and(|n| n >= 0.0), "{row:?}");
        }
    }
}

#[test]
fn csv_has_the_same_tests_under_named_fields() {
    let text = bench(LLAMA, &[&SMALL[..], &["-o", "csv"]].concat());
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().expect("a header").split(',').collect();
    let at = |name: &str| names.iter().position(|n| *n == name).unwrap_or_else(|| panic!("no field {name}"));
    let mut tests = vec![];
    for line in lines {
        // Only the device, which is quoted, may have commas.
        let outside: Vec<&str> = line.split('"').collect();
        let line =
            if outside.len() == 3 { format!("{}device{}", outside[0], outside[2]) } else { line.to_string() };
        let fields: Vec<&str> = line.split(',').collect();
        assert_eq!(fields.len(), names.len(), "{line}");
        assert_eq!((fields[at("engine")], fields[at("repetitions")]), ("cpu", "2"));
        assert!(fields[at("tok_per_s_median")].parse::<f64>().is_ok_and(|n| n > 0.0), "{line}");
        tests.push(fields[at("test")].to_string());
    }
    assert_eq!(tests, TESTS);
}

#[test]
fn json_has_every_repetition_and_the_facts_of_the_file() {
    let got = bench_json(LLAMA, &SMALL);
    let checkpoint = Checkpoint::open(fixture(LLAMA)).expect("the fixture opens");
    let parameters: usize = checkpoint.names().map(|n| checkpoint.tensor(n).expect("there").elements()).sum();
    assert_eq!((&got["parameters"], &got["size_bytes"]), (&parameters.into(), &(4 * parameters).into()));
    assert_eq!(["engine", "dtype", "kv_dtype"].map(|name| got[name].clone()), ["cpu", "f32", "f32"]);
    let tests = got["tests"].as_array().expect("tests");
    assert_eq!(tests.iter().filter_map(|t| t["test"].as_str()).collect::<Vec<_>>(), TESTS);
    let last = &tests[5];
    let counts = ["prompt_tokens", "new_tokens", "depth", "sequences"].map(|name| last[name].as_u64());
    assert_eq!(counts, [0, 2, 20, 3].map(Some));
    for test in tests {
        let samples: Vec<f64> = serde_json::from_value(test["tok_per_s_samples"].clone()).expect("samples");
        let mean = test["tok_per_s"].as_f64().expect("a mean");
        assert_eq!(samples.len(), 2);
        assert!(((samples[0] + samples[1]) / 2.0 - mean).abs() < 1e-9 * mean, "{test}");
    }
}

/// What one step moved, from the speed and the rate that were reported.
fn bytes_of_a_step(test: &Value) -> f64 {
    let number = |name: &str| test[name].as_f64().expect("a number");
    let steps_per_s = number("tok_per_s_median") / number("sequences");
    number("gigabytes_per_s") * 1e9 / steps_per_s
}

#[test]
fn a_step_reads_the_weights_once_and_the_cache_of_every_sequence() {
    let got = bench_json(LLAMA, &["-p", "0", "-n", "1", "-d", "0,20", "-b", "1,3", "-r", "1"]);
    let checkpoint = Checkpoint::open(fixture(LLAMA)).expect("the fixture opens");
    let elements = |name: &str| checkpoint.tensor(name).expect("there").elements() as f64;
    // Of the embedding only rows are read; all else is read in full.
    let layers: f64 = checkpoint.names().map(elements).sum::<f64>() - elements("model.embed_tokens.weight");
    // From config.json: rows of 64 numbers; two layers of two key heads of 24 numbers, and as many values.
    let wanted =
        |sequences: f64, tokens: f64| 4.0 * (layers + sequences * (64.0 + tokens * 2.0 * 2.0 * 2.0 * 24.0));
    let tests = got["tests"].as_array().expect("tests");
    for (test, (sequences, tokens)) in tests.iter().zip([(1.0, 1.0), (3.0, 1.0), (1.0, 21.0), (3.0, 21.0)]) {
        let (moved, wanted) = (bytes_of_a_step(test), wanted(sequences, tokens));
        assert!((moved - wanted).abs() < 1e-6 * wanted, "{test}: {moved} and not {wanted}");
    }
}

#[test]
fn rates_are_compared_with_what_the_machine_was_calibrated_to() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let run = |arguments: &[&str]| {
        let mut command = mlxcel(arguments);
        let done = finished(command.env("MLXCEL_CACHE", folder.path()).output().expect("the binary runs"));
        assert_eq!(done.code, Some(0), "{}", done.stderr);
        done.stdout
    };
    let model = fixture_argument(LLAMA);
    let bench = ["bench", "-m", &model, "-p", "8", "-n", "0", "-r", "1", "--threads", "1"];
    let json = |arguments: &[&str]| -> Value { serde_json::from_str(&run(arguments)).expect("JSON") };
    assert!(json(&[&bench[..], &["-o", "json"]].concat())["tests"][0]["read_share"].is_null());
    let devices = json(&["devices", "--calibrate", "--threads", "1", "--json"]);
    let known = &devices["devices"][0]["calibration"];
    assert_eq!(known["threads"], 1);
    assert!(devices["devices"][1]["calibration"].is_null(), "only the processor's engine is measured");
    let one = json(&["devices", "--engine", "cpu", "--threads", "1", "--calibrate", "--json"]);
    assert_eq!(one["devices"].as_array().map(Vec::len), Some(1), "{one}");
    let known = &one["devices"][0]["calibration"];
    let test = &json(&[&bench[..], &["-o", "json"]].concat())["tests"][0];
    let number = |of: &Value, name: &str| of[name].as_f64().unwrap_or_else(|| panic!("no {name} in {of}"));
    let share = number(test, "gigabytes_per_s") / number(known, "read_gigabytes_per_s");
    assert!((number(test, "read_share") - share).abs() < 1e-9, "{test}");
    let peak = number(known, "f32_gflop_per_s").max(known["bf16_gflop_per_s"].as_f64().unwrap_or(0.0));
    assert!((number(test, "peak_share") - number(test, "gflop_per_s") / peak).abs() < 1e-9, "{test}");
    assert!(run(&bench).contains(" %)"));
    let two = json(&["bench", "-m", &model, "-p", "8", "-n", "0", "-r", "1", "--threads", "2", "-o", "json"]);
    assert!(two["tests"][0]["read_share"].is_null(), "other threads are another device");
}

#[test]
fn models_with_other_state_and_other_engines_are_measured_too() {
    for engine in ["cpu", "reference"] {
        let got = bench_json(
            "golden/mamba/f32",
            &["-p", "5", "-n", "2", "-b", "2", "-d", "3", "-r", "1", "--engine", engine],
        );
        assert_eq!(got["tests"].as_array().map(Vec::len), Some(2), "{got}");
        assert_eq!(got["engine"], engine);
    }
}

#[test]
fn nonsense_is_refused_with_what_is_possible() {
    for (arguments, said) in [
        (["-r", "0"], "1..=10000"),
        (["-b", "0"], "1..=4096"),
        (["-b", "1,x"], "invalid digit"),
        (["-d", "-1"], "unexpected argument '-1'"),
        (["-o", "xml"], "[possible values: md, json, csv]"),
    ] {
        let (code, stderr) = refused(&arguments);
        assert_eq!(code, Some(2), "{stderr}");
        assert!(stderr.contains(said), "{arguments:?}: {stderr}");
    }
    let (code, stderr) = refused(&["-p", "0", "-n", "0"]);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("nothing to measure; give -p or -n"), "{stderr}");
}

#[test]
fn what_exceeds_the_context_or_the_memory_is_refused_with_both_counts() {
    let (code, stderr) = refused(&["-p", "40", "-n", "8", "-d", "0,480"]);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("pp40 @ d480 needs 520 tokens, but the model's context has 512"), "{stderr}");
    let done = run(&["bench", "-m", &fixture_argument("golden/bert/f32")]);
    assert_eq!((done.code, done.stdout.as_str()), (Some(1), ""));
    assert!(done.stderr.contains("give -m a decoder"), "{}", done.stderr);
}
