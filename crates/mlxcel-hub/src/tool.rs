//! Running the machine's package clients as child processes, watching what they download grow.

use std::{
    ffi::OsString,
    io::Read as _,
    path::Path,
    process::{ChildStderr, Command, Stdio},
    thread,
    time::Duration,
};

use crate::{Error, Result, progress::Meter};

const POLL: Duration = Duration::from_millis(100);
/// How much of a failed command's complaint is repeated.
const COMPLAINT_BYTES_MAX: usize = 2000;

/// A command line, as words.
#[derive(Clone)]
pub(crate) struct Tool {
    words: Vec<OsString>,
    path: Option<OsString>,
}

impl Tool {
    pub(crate) fn new(words: &[&str], path: Option<&OsString>) -> Self {
        Self { words: words.iter().map(OsString::from).collect(), path: path.cloned() }
    }

    pub(crate) fn with(mut self, words: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.words.extend(words.into_iter().map(Into::into));
        self
    }

    /// Whether the command can be run with `--version`, that is, whether it is there at all.
    pub(crate) fn is_present(&self) -> bool {
        let mut command = self.command();
        command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    }

    /// What the command says on stdout, in lines as long as they come; `None` if it fails.
    pub(crate) fn answer(&self) -> Option<String> {
        let mut command = self.command();
        let output =
            command.env("COLUMNS", "1000").stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs the command in `folder`, which is also where it is told to keep temporary files, and reports the size of
    /// the largest file there as progress.
    pub(crate) fn run(&self, folder: &Path, meter: Meter<'_>) -> Result<()> {
        let mut command = self.command();
        command.current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        for variable in ["TMPDIR", "TEMP", "TMP"] {
            command.env(variable, folder);
        }
        let mut child = command.spawn().map_err(Error::io("run", self.words[0].clone()))?;
        let stderr = child.stderr.take().expect("stderr was asked to be piped");
        let complaint = thread::spawn(move || last_words(stderr));
        let status = loop {
            match child.try_wait().map_err(Error::io("wait for", self.words[0].clone()))? {
                Some(status) => break status,
                None => thread::sleep(POLL),
            }
            meter.at(largest_file(folder, 4));
        };
        let stderr = complaint.join().unwrap_or_default();
        if status.success() {
            return Ok(());
        }
        Err(Error::ToolFailed { command: self.line(), status: status.to_string(), stderr })
    }

    /// The command line, for messages.
    pub(crate) fn line(&self) -> String {
        self.words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]);
        if let Some(path) = &self.path {
            command.env("PATH", path);
        }
        command
    }
}

/// Reads a pipe to its end and returns the last lines of what it said.
fn last_words(mut pipe: ChildStderr) -> String {
    let (mut all, mut buffer) = (Vec::new(), [0; 4096]);
    while let Ok(count @ 1..) = pipe.read(&mut buffer) {
        all.extend_from_slice(&buffer[..count]);
        all.drain(..all.len().saturating_sub(COMPLAINT_BYTES_MAX));
    }
    String::from_utf8_lossy(&all).trim().to_owned()
}

/// The size of the largest file below `folder`. What vanishes while it is looked at counts as nothing.
fn largest_file(folder: &Path, depth: usize) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(data) if data.is_dir() && depth > 0 => largest_file(&entry.path(), depth - 1),
        Ok(data) if data.is_file() => data.len(),
        _ => 0,
    });
    sizes.max().unwrap_or(0)
}
