//! The official clients of OpenAI and Anthropic, which `cargo xtask test` installs and names by variables. Without
//! them the tests say so.

use std::path::Path;
use std::process::Command;

use mlxcel_server::Config;

use crate::house::{House, Plan};

/// Runs a script against a server that wants a key; `program` is what runs it, if it is there.
fn run(program: Option<Command>, script: &str, folder: Option<&str>) {
    let Some(mut command) = program else {
        println!("not run: the clients are not installed; run 'cargo xtask test'");
        return;
    };
    let plan = Plan::default();
    let house =
        House::build(Plan { config: Config { api_keys: vec!["sesame".to_string()], ..plan.config }, ..plan });
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sdk").join(script);
    let output = command.arg(script).arg(&house.address).args(folder).output().expect("the program runs");
    let told =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("{told}");
    assert!(output.status.success(), "{told}");
    house.assert_sound();
}

fn python() -> Option<Command> {
    std::env::var_os("MLXCEL_TEST_SDK_PYTHON").map(Command::new)
}

#[test]
fn the_python_client_of_openai_is_content() {
    run(python(), "openai_sdk.py", None);
}

#[test]
fn the_python_client_of_anthropic_is_content() {
    run(python(), "anthropic_sdk.py", None);
}

#[test]
fn the_node_client_of_openai_is_content() {
    let folder = std::env::var("MLXCEL_TEST_SDK_NODE").ok();
    let node = folder.as_ref().map(|_| Command::new("node"));
    run(node, "openai_sdk.mjs", folder.as_deref());
}
