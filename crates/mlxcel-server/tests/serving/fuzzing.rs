//! Schemathesis, which makes requests by the server's own document, valid and invalid ones: nothing may break. `cargo
//! xtask test` installs it; without it the test says so.

use std::process::Command;

use mlxcel_server::Config;

use crate::house::{House, Plan};

/// Requests that are made up for each operation, beside the boundary values of every field.
const EXAMPLES: &str = "25";

/// What is judged: that nothing fails, that what is answered is what the document says, and that nobody gets in without
/// a key.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,\
    ignored_auth,unsupported_method";

#[test]
fn requests_made_by_the_document_break_nothing() {
    let Some(python) = std::env::var_os("MLXCEL_TEST_SDK_PYTHON") else {
        println!("not run: schemathesis is not installed; run 'cargo xtask test'");
        return;
    };
    let plan = Plan { models: vec!["script", "embedder"], ..Plan::default() };
    let config = Config { api_keys: vec!["sesame".to_string()], ..plan.config };
    let house = House::build(Plan { config, ..plan });
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(python);
    command.args(["-m", "schemathesis.cli", "run"]).arg(format!("{}/openapi.json", house.address));
    command.args(["--phases", "examples,coverage,fuzzing", "--mode", "all", "--max-examples", EXAMPLES]);
    // One worker: Python 3.11 fails at times where two threads parse its source at once, as Schemathesis' do to describe what they
    // make ("AST constructor recursion depth mismatch").
    command.args(["--checks", CHECKS, "--seed", "1", "--workers", "1"]);
    command.args(["--request-timeout", "20", "--suppress-health-check", "all", "--no-color"]);
    command.args(["--header", "Authorization: Bearer sesame", "--generation-database", "none"]);
    let output = command.current_dir(folder.path()).output().expect("the program runs");
    let told =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("{told}");
    assert!(output.status.success(), "{told}");
    assert!(told.contains("Tested: 26"), "every operation was tried: {told}");
    house.assert_sound();
}
