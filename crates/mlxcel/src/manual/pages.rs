//! Man pages: clap_mangen's sections, followed by examples, exit codes and environment.

use std::io;

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use super::full_name;
use crate::environment::VARIABLES;
use crate::exit;

/// `mlxcel-generate.1` for `mlxcel generate`.
pub fn file_name(command: &Command) -> String {
    format!("{}.1", page_name(command))
}

fn page_name(command: &Command) -> String {
    full_name(command).replace(' ', "-")
}

pub fn page(command: &Command) -> io::Result<Vec<u8>> {
    let version = concat!("mlxcel ", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command.clone())
        .title(page_name(command).to_uppercase())
        .source(version)
        .manual("mlxcel manual");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.get_subcommands().any(|c| !c.is_hide_set()) {
        commands(command).to_writer(&mut page)?;
    }
    if let Some(text) = command.get_after_help() {
        examples(&text.to_string()).to_writer(&mut page)?;
    }
    exit_codes().to_writer(&mut page)?;
    environment().to_writer(&mut page)?;
    Ok(page)
}

fn commands(command: &Command) -> Roff {
    let mut section = Roff::new();
    section.control("SH", ["COMMANDS"]);
    for child in command.get_subcommands().filter(|c| !c.is_hide_set()) {
        let about = child.get_about().map(ToString::to_string).unwrap_or_default();
        section.control("TP", []);
        section.text([bold(format!("{}(1)", page_name(child)))]);
        section.text([roman(about)]);
    }
    section
}

/// Lines as they are, without the word that heads them in `--help`.
fn examples(text: &str) -> Roff {
    let mut section = Roff::new();
    section.control("SH", ["EXAMPLES"]).control("nf", []);
    for line in text.lines().filter(|line| *line != "Examples:") {
        section.text([roman(line.trim_start())]);
    }
    section.control("fi", []);
    section
}

fn exit_codes() -> Roff {
    let mut section = Roff::new();
    section.control("SH", ["EXIT STATUS"]);
    for exit::Code { code, meaning } in exit::CODES {
        section.control("TP", []);
        section.text([bold(code.to_string())]);
        section.text([roman(*meaning)]);
    }
    section.control("PP", []);
    section.text([roman(exit::NOTE)]);
    section
}

fn environment() -> Roff {
    let mut section = Roff::new();
    section.control("SH", ["ENVIRONMENT"]);
    for variable in VARIABLES {
        section.control("TP", []);
        section.text([bold(variable.name)]);
        section.text([roman(variable.meaning)]);
    }
    section
}
