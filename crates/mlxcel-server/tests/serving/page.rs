//! The chat page in a real Chromium, driven by Node.js: with a server that only pretends, for every corner of the page,
//! and with this one. Where there is no Chromium, the tests say so; `MLXCEL_TEST_CHROMIUM` names one.

use std::path::{Path, PathBuf};
use std::process::Command;

use mlxcel_server::Config;

use crate::house::{House, Plan};

fn chromium() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("MLXCEL_TEST_CHROMIUM") {
        return Some(path.into());
    }
    let names = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
    let folders: Vec<PathBuf> = std::env::split_paths(&std::env::var_os("PATH")?).collect();
    names
        .iter()
        .flat_map(|name| folders.iter().map(move |folder| folder.join(name)))
        .find(|path| path.is_file())
}

/// Runs a script with Chromium and further arguments, if there is a Chromium.
fn run(script: &str, arguments: &[&str]) {
    let Some(chromium) = chromium() else {
        println!("not run: there is no Chromium; install one, or set MLXCEL_TEST_CHROMIUM to its path");
        return;
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/page").join(script);
    let output =
        Command::new("node").arg(script).arg(chromium).args(arguments).output().expect("Node.js runs");
    let told =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("{told}");
    assert!(output.status.success(), "{told}");
}

#[test]
fn the_page_does_what_a_person_asks_of_it() {
    run("page.mjs", &[]);
}

#[test]
fn the_page_works_with_this_server() {
    let plan = Plan::default();
    let house =
        House::build(Plan { config: Config { api_keys: vec!["sesame".to_string()], ..plan.config }, ..plan });
    run("real.mjs", &[&house.address, "sesame"]);
    house.assert_sound();
}
