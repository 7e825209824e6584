//! The smoke tests: programs are taken out of their archive, and nothing else, and asked for what a new user asks.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use mlxcel_hub::{Hub, SMOLLM2, Settings, Stderr};
use serde_json::{Value, json};

use super::{
    machine::Machine,
    microsoft,
    targets::{Kind, Target},
};
use crate::{mlx, shell};

/// How many tokens are compared.
const TOKENS: usize = 10;

/// How long a server may take to come up or go down; under qemu it decodes a hundred megabytes first.
const PATIENCE: Duration = Duration::from_secs(240);

/// Families whose golden tokens are asked for: attention alone, experts, and a recurrence.
const FAMILIES: [&str; 3] = ["llama", "qwen3_moe", "mamba"];

/// A name with spaces and letters beyond ASCII, as users' folders have.
const FOLDER: &str = "Größe und Ort";

/// What is known of SmolLM2 by llama.cpp: a prompt and the tokens that follow.
struct Known {
    model: PathBuf,
    prompt: String,
    tokens: Vec<u64>,
}

/// An unpacked archive and what runs it.
pub(crate) struct Smoke<'a> {
    target: &'a Target,
    machine: Machine,
    /// The folder with the programs.
    programs: PathBuf,
    /// MLX for the target, where its shim is in the archive.
    mlx: Option<PathBuf>,
}

impl<'a> Smoke<'a> {
    /// Unpacks an archive into an empty folder.
    pub(crate) fn unpack(target: &'a Target, machine: Machine, archive: &Path) -> Result<Self> {
        let folder = shell::target_folder("dist-smoke").join(target.name).join(FOLDER);
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(&folder)?;
        let file = fs::File::open(archive).with_context(|| format!("cannot open {}", archive.display()))?;
        if target.kind == Kind::Windows {
            zip::ZipArchive::new(file)?.extract(&folder)?;
        } else {
            tar::Archive::new(flate2::read::GzDecoder::new(file)).unpack(&folder)?;
        }
        let top = folder.join(target.folder());
        let programs = if target.kind == Kind::Windows { top } else { top.join("bin") };
        let has_shim = programs.join(microsoft::SHIM).is_file();
        let mlx = has_shim.then(|| mlx::fetch_for("mlx-cpu", mlxcel_hub::Machine::WindowsX86)).transpose()?;
        Ok(Smoke { target, machine, programs, mlx })
    }

    /// Runs everything; what passed is added to `ran`, in the order of the tests.
    pub(crate) fn run(&self, ran: &mut Vec<String>) -> Result<()> {
        let known = known()?;
        let mut passed = |what: &str| {
            eprintln!("xtask: {} {}: {what}", self.target.name, self.machine.name());
            ran.push(what.to_string());
        };
        self.version()?;
        passed("--version");
        for family in FAMILIES {
            self.golden(family, &[])?;
        }
        passed("goldens of llama, qwen3_moe, mamba");
        if self.mlx.is_some() {
            for family in FAMILIES {
                self.golden(family, &["--engine", "mlx"])?;
            }
            passed("the same goldens with MLX");
        }
        self.answer(&known)?;
        passed("10 tokens of SmolLM2");
        self.serve(&known)?;
        passed("server request, graceful stop");
        if self.target.kind == Kind::Windows {
            passed("path with spaces and non-ASCII");
            self.other_drive(&known)?;
            passed("cache on E:");
        }
        if self.machine.name() != "here" || fs::metadata("/dev/nvidiactl").is_err() {
            self.no_driver(&known)?;
            passed("--engine cuda without a driver: clear message");
        }
        Ok(())
    }

    fn command(&self, program: &str) -> Command {
        let mut command = self.machine.command(&self.programs.join(self.target.program(program)));
        command.stdin(Stdio::null());
        if let Some(home) = &self.mlx {
            command.env("MLXCEL_MLX_HOME", self.machine.path(home));
        }
        command
    }

    /// Runs `mlxcel` and returns the object that it prints.
    fn json(&self, arguments: &[&str]) -> Result<Value> {
        let mut command = self.command("mlxcel");
        let output = command.args(arguments).arg("--json").output()?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "mlxcel {} failed: {errors}", arguments.join(" "));
        serde_json::from_slice(&output.stdout).with_context(|| {
            format!("this is no object: {} {errors}", String::from_utf8_lossy(&output.stdout))
        })
    }

    fn version(&self) -> Result<()> {
        for program in super::targets::PROGRAMS {
            let output = self.command(program).arg("--version").output()?;
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            ensure!(output.status.success() && said.contains(env!("CARGO_PKG_VERSION")), "{program}: {said}");
        }
        Ok(())
    }

    /// The tokens that transformers gives after a tiny random checkpoint's prompt.
    fn golden(&self, family: &str, options: &[&str]) -> Result<()> {
        let folder = shell::root().join("fixtures/golden").join(family).join("f32");
        let golden: Value = serde_json::from_slice(&fs::read(folder.join("golden.json"))?)?;
        let case = &golden["cases"][0];
        let (prompt, wanted) = (numbers(&case["prompt"])?, numbers(&case["tokens"])?);
        let prompt: Vec<_> = prompt.iter().map(u64::to_string).collect();
        let (model, count) = (self.machine.path(&folder), wanted.len().to_string());
        let words = ["generate", "-m", &model, "--prompt-tokens", &prompt.join(","), "-n", &count];
        let words = words.into_iter().chain(["--temp", "0", "--ignore-eos"]);
        let words: Vec<_> = words.chain(options.iter().copied()).collect();
        let found = numbers(&self.json(&words)?["tokens"])?;
        ensure!(found == wanted, "{family}: {found:?} instead of transformers' {wanted:?}");
        Ok(())
    }

    fn answer(&self, known: &Known) -> Result<()> {
        let model = self.machine.path(&known.model);
        let found = numbers(&self.json(&generate(&model, known))?["tokens"])?;
        ensure!(found == known.tokens, "{found:?} instead of llama.cpp's {:?}", known.tokens);
        Ok(())
    }

    /// The default model from a cache on another drive, offline.
    fn other_drive(&self, known: &Known) -> Result<()> {
        let Some(drive) = self.machine.second_drive()? else { return Ok(()) };
        let package = known.model.parent().context("a model lies in a folder")?;
        let packages = drive.join(FOLDER).join("packages");
        let copy = packages.join(package.file_name().context("a folder has a name")?);
        if copy.exists() {
            fs::remove_dir_all(&copy)?;
        }
        fs::create_dir_all(&copy)?;
        for entry in fs::read_dir(package)? {
            let path = entry?.path();
            fs::copy(&path, copy.join(path.file_name().context("a file has a name")?))?;
        }
        let mut command = self.command("mlxcel");
        command.args(generate("smollm2", known)).args(["--offline", "--json"]);
        let output = command.env("MLXCEL_CACHE", format!("E:\\{FOLDER}")).output()?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "with a cache on E: {errors}");
        let found: Value = serde_json::from_slice(&output.stdout)?;
        ensure!(numbers(&found["tokens"])? == known.tokens, "other tokens with a cache on E:");
        Ok(())
    }

    fn no_driver(&self, known: &Known) -> Result<()> {
        let model = self.machine.path(&known.model);
        let mut command = self.command("mlxcel");
        let output = command.args(generate(&model, known)).args(["--engine", "cuda"]).output()?;
        let said = String::from_utf8_lossy(&output.stderr).to_lowercase();
        ensure!(!output.status.success() && said.contains("driver"), "without a driver it said: {said}");
        Ok(())
    }

    fn serve(&self, known: &Known) -> Result<()> {
        let port = free_port()?;
        let mut command = self.command("mlxcel-server");
        command.arg("-m").arg(self.machine.path(&known.model)).args(["--host", "127.0.0.1", "--port"]);
        command.arg(port.to_string()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut server = Running(command.spawn().context("the server does not start")?);
        let body = json!({
            "messages": [{ "role": "user", "content": known.prompt }], "temperature": 0, "max_tokens": TOKENS,
        });
        let answer = ask(port, &body, &mut server)?;
        let text = answer["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_string();
        ensure!(answer["usage"]["completion_tokens"] == json!(TOKENS), "the server answered {answer}");
        ensure!(!text.trim().is_empty(), "the server answered nothing: {answer}");
        let mut kill = Command::new("kill");
        kill.arg(self.machine.end_signal()).arg(server.0.id().to_string());
        super::tools::output(&mut kill)?;
        let code = server.wait()?;
        ensure!(code == Some(0), "the server ended with {code:?} when it was asked to end");
        Ok(())
    }
}

/// The words that ask for the known answer.
fn generate<'a>(model: &'a str, known: &'a Known) -> Vec<&'a str> {
    let words =
        ["generate", "-m", model, "-p", &known.prompt, "--temp", "0", "-n", "10", "--products", "exact"];
    words.to_vec()
}

fn known() -> Result<Known> {
    let model = Hub::new(Settings::from_env()?, Stderr::new()).fetch_member(&SMOLLM2)?;
    let oracle: Value =
        serde_json::from_slice(&fs::read(shell::root().join("fixtures/smollm2/oracle.json"))?)?;
    let case = &oracle["cases"][0];
    let prompt = case["prompt"].as_str().context("the oracle has a prompt")?.to_string();
    let tokens = numbers(&case["tokens"])?.into_iter().take(TOKENS).collect();
    Ok(Known { model, prompt, tokens })
}

fn numbers(value: &Value) -> Result<Vec<u64>> {
    let list = value.as_array().with_context(|| format!("{value} is no list"))?;
    list.iter().map(|n| n.as_u64().with_context(|| format!("{n} is no token"))).collect()
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// A server that does not outlive this program.
struct Running(Child);

impl Running {
    fn wait(&mut self) -> Result<Option<i32>> {
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
            if let Some(status) = self.0.try_wait()? {
                return Ok(status.code());
            }
            thread::sleep(Duration::from_millis(100));
        }
        bail!("the server does not end")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Asks until the server is there and answers.
fn ask(port: u16, body: &Value, server: &mut Running) -> Result<Value> {
    let body = body.to_string();
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let begin = Instant::now();
    let mut last = String::from("no connection");
    while begin.elapsed() < PATIENCE {
        if let Some(status) = server.0.try_wait()? {
            bail!("the server ended by itself: {status}");
        }
        match exchange(port, &request) {
            Ok(answer) if answer.starts_with("HTTP/1.1 200") => {
                let (from, to) = (answer.find('{').unwrap_or(0), answer.rfind('}').map_or(0, |at| at + 1));
                return serde_json::from_str(answer.get(from..to).unwrap_or_default())
                    .with_context(|| format!("the server answered {answer}"));
            }
            // A model that is loading is an answer, too.
            Ok(answer) => last = answer,
            Err(error) => last = format!("{error:#}"),
        }
        thread::sleep(Duration::from_millis(500));
    }
    bail!("the server does not answer: {last}")
}

fn exchange(port: u16, request: &str) -> Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
