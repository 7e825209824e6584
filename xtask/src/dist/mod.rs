//! `cargo xtask dist`: archives and packages for every platform that this machine can build for, with licences, lists of
//! what is linked, sums and their signature. `cargo xtask verify` checks a folder of them. What cannot be made here is
//! said, and does not stop the rest.

mod archive;
mod build;
mod certificate;
mod digest;
mod installer;
mod licences;
mod linked;
mod machine;
mod macho;
mod microsoft;
mod roots;
mod sbom;
mod shim;
mod smoke;
mod stage;
mod sums;
mod targets;
mod toolchain;
mod tools;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use clap::Args;

use crate::{mlx, shell};
use machine::Machine;
use smoke::Smoke;
use stage::Stage;
use targets::{Kind, PROGRAMS, TARGETS, Target};
use tools::Tools;

/// The most that an archive may have.
const BYTES_MAX: u64 = 100_000_000;

#[derive(Debug, Args)]
pub(crate) struct Dist {
    /// Also run what was made, where something here runs it.
    #[arg(long)]
    smoke: bool,
    /// These platforms instead of all; may be given several times.
    #[arg(long, value_name = "PLATFORM", value_parser = TARGETS.map(|target| target.name))]
    only: Vec<String>,
    /// Build twice, the second time from nothing, and compare.
    #[arg(long)]
    twice: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Verify {
    /// The folder with the artifacts, SHA256SUMS and its signature.
    folder: PathBuf,
    /// The file with minisign's public key.
    #[arg(long, value_name = "FILE")]
    public_key: PathBuf,
}

/// An artifact, or what could not be made.
struct Row {
    name: String,
    /// Size and digest.
    made: Option<(u64, String)>,
    ran: Vec<String>,
}

pub(crate) fn run(options: &Dist) -> Result<()> {
    tools::say_what_is_missing();
    ensure!(
        !(options.twice && certificate::is_given()),
        "signatures have dates, so two signed builds differ: run --twice without {}",
        certificate::PKCS12
    );
    let key = sums::key_of_environment()?;
    let out = shell::target_folder("dist");
    if out.exists() {
        fs::remove_dir_all(&out).with_context(|| format!("cannot empty {}", out.display()))?;
    }
    fs::create_dir_all(&out)?;
    let tools = Tools::fetch()?;
    let is_wanted =
        |target: &&Target| options.only.is_empty() || options.only.iter().any(|o| o == target.name);
    let (mut rows, mut failures) = (Vec::new(), 0);
    for target in TARGETS.iter().filter(is_wanted) {
        match make(target, options, &tools, &out) {
            Ok((made, failed)) => {
                rows.extend(made);
                failures += failed;
            }
            Err(error) => {
                failures += usize::from(!tools::is_lack(&error));
                rows.push(Row {
                    name: target.archive(),
                    made: None,
                    ran: vec![format!("not made: {error:#}")],
                });
            }
        }
    }
    let names: Vec<_> = rows.iter().filter(|row| row.made.is_some()).map(|row| row.name.clone()).collect();
    remove_others(&out, &names)?;
    print(&rows);
    ensure!(failures == 0, "{failures} failed");
    ensure!(!names.is_empty(), "this machine can make nothing");
    sums::write(&out, &names)?;
    if let Some(key) = &key {
        sums::sign(&out, key)?;
    }
    let signed = if key.is_some() { "signed" } else { "not signed: no key" };
    println!("\n{}: SHA256SUMS, {signed} ({})", out.display(), sums::KEY_FILE);
    Ok(())
}

/// What was begun for a platform that then failed is no part of the release.
fn remove_others(out: &Path, names: &[String]) -> Result<()> {
    for entry in fs::read_dir(out)? {
        let entry = entry?;
        if !names.iter().any(|name| entry.file_name() == **name) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

pub(crate) fn verify(options: &Verify) -> Result<()> {
    let key = fs::read_to_string(&options.public_key)
        .with_context(|| format!("cannot read {}", options.public_key.display()))?;
    let (count, said) = sums::verify(&options.folder, &key)?;
    println!("{count} files are as they were signed: {said}");
    Ok(())
}

/// Makes everything for one target; returns the artifacts and how many smoke tests failed.
fn make(target: &Target, options: &Dist, tools: &Tools, out: &Path) -> Result<(Vec<Row>, usize)> {
    let programs = build::run(target, tools, &shell::target_folder(build::FOLDER))?;
    let mut rows = assemble(target, programs, tools, out)?;
    if options.twice {
        let (folder, again) = (shell::target_folder("cross/again"), shell::target_folder("dist-again"));
        for old in [&folder, &again, &shell::target_folder(mlx::SHIMS)] {
            if old.exists() {
                fs::remove_dir_all(old)?;
            }
        }
        fs::create_dir_all(&again)?;
        compare(&mut rows, &assemble(target, build::run(target, tools, &folder)?, tools, &again)?)?;
        fs::remove_dir_all(&folder)?;
    }
    let mut failed = 0;
    if options.smoke {
        failed += smoke_test(target, &out.join(target.archive()), &mut rows[0]);
        failed += rows.iter_mut().map(|row| usize::from(!roots::install(target, out, row))).sum::<usize>();
    }
    Ok((rows, failed))
}

/// Checks what was compiled and packs it; the archive comes first.
fn assemble(target: &Target, programs: PathBuf, tools: &Tools, out: &Path) -> Result<Vec<Row>> {
    let mut notes = checks(target, &programs)?;
    let programs = signed(target, programs, &mut notes)?;
    let shim = shim::make(target, tools, &mut notes)?;
    let stage = Stage {
        target,
        programs,
        shim,
        documents: shell::target_folder("dist-documents").join(target.name),
        version: env!("CARGO_PKG_VERSION").to_string(),
        seconds: stage::commit_seconds()?,
    };
    stage.write_documents(&linked::find(target.triple)?, tools)?;
    fs::write(out.join(target.archive()), stage.archive()?)?;
    let mut rows = vec![row(out, target.archive(), notes)?];
    rows.extend(packages(&stage, tools, out)?);
    Ok(rows)
}

fn smoke_test(target: &Target, archive: &Path, row: &mut Row) -> usize {
    let machine = Machine::find(target);
    let done = machine
        .and_then(|machine| Smoke::unpack(target, machine, archive))
        .and_then(|smoke| smoke.run(&mut row.ran));
    match done {
        Ok(()) => 0,
        Err(error) if tools::is_lack(&error) => {
            row.ran.push(format!("not run: {error:#}"));
            0
        }
        Err(error) => {
            row.ran.push(format!("FAILED: {error:#}"));
            1
        }
    }
}

/// What can be seen without running the programs.
fn checks(target: &Target, programs: &Path) -> Result<Vec<String>> {
    let mut notes = Vec::new();
    for program in PROGRAMS {
        let bytes = fs::read(programs.join(target.program(program)))?;
        build::check_paths(&bytes).with_context(|| program.to_string())?;
    }
    if let Some(baseline) = target.glibc {
        for program in PROGRAMS {
            let wanted = build::glibc_wanted(&programs.join(program))?;
            ensure!(wanted <= baseline, "{program} asks for glibc {}.{}", wanted.0, wanted.1);
            notes = vec![format!("glibc {}.{}", wanted.0, wanted.1)];
        }
    }
    if target.kind == Kind::Mac {
        for program in PROGRAMS {
            let path = programs.join(program);
            macho::check(&fs::read(&path)?).with_context(|| path.display().to_string())?;
        }
        notes.push(
            "links against stubs of system libraries; Mach-O for ARM, its signature is of its bytes; not run"
                .into(),
        );
    }
    Ok(notes)
}

/// Notes which artifacts have the same bytes as those of a second build; one that has others is a failure.
fn compare(rows: &mut [Row], again: &[Row]) -> Result<()> {
    for (row, second) in rows.iter_mut().zip(again) {
        let (Some((_, first)), Some((_, second))) = (&row.made, &second.made) else { continue };
        ensure!(first == second, "{} differs between two builds: {first} and {second}", row.name);
        row.ran.push("two builds, the same bytes".to_string());
    }
    Ok(())
}

/// Copies of the programs, signed, where there is a certificate for Windows; else the programs.
fn signed(target: &Target, programs: PathBuf, notes: &mut Vec<String>) -> Result<PathBuf> {
    if target.kind != Kind::Windows {
        return Ok(programs);
    }
    let folder = shell::target_folder("dist-signed");
    fs::create_dir_all(&folder)?;
    let mut is_signed = true;
    for program in PROGRAMS {
        let copy = folder.join(target.program(program));
        fs::copy(programs.join(target.program(program)), &copy)?;
        is_signed &= certificate::sign(&copy)?;
    }
    notes.push(if is_signed { "signed with a certificate" } else { "no certificate" }.to_string());
    Ok(folder)
}

fn packages(stage: &Stage<'_>, tools: &Tools, out: &Path) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    match stage.target.kind {
        Kind::Linux => {
            for packager in ["deb", "rpm"] {
                rows.push(row(out, stage.package(packager, tools, out)?, vec![])?);
            }
            rows.push(row(out, stage.wheel(out)?, vec![])?);
        }
        Kind::Windows => {
            rows.push(row(out, stage.wheel(out)?, vec![])?);
            match stage.installer(out) {
                Ok(name) => {
                    certificate::sign(&out.join(&name))?;
                    rows.push(row(out, name, vec![])?);
                }
                Err(error) => {
                    let name = format!("mlxcel-{}{}.msi", stage.target.name, stage.target.suffix);
                    rows.push(Row { name, made: None, ran: vec![format!("not made: {error:#}")] });
                }
            }
        }
        Kind::Mac => {}
    }
    Ok(rows)
}

fn row(out: &Path, name: String, ran: Vec<String>) -> Result<Row> {
    let path = out.join(&name);
    let size = fs::metadata(&path)?.len();
    ensure!(size < BYTES_MAX, "{name} has {size} bytes, which is more than {BYTES_MAX}");
    Ok(Row { made: Some((size, digest::of_file(&path)?)), name, ran })
}

fn print(rows: &[Row]) {
    println!("| artifact | size | sha256 | what was run |\n|---|---|---|---|");
    for row in rows {
        let (size, digest) = match &row.made {
            Some((size, digest)) => (format!("{:.1} MB", *size as f64 / 1e6), digest.clone()),
            None => ("-".to_string(), "-".to_string()),
        };
        let ran = if row.ran.is_empty() { "not run".to_string() } else { row.ran.join("; ") };
        println!("| {} | {size} | {digest} | {ran} |", row.name);
    }
}
