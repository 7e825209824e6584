//! What serving costs beside computing: `cargo bench -p mlxcel-server`. A server with the null engine runs in a process
//! of its own, clients stream answers from it, and its processor time is divided by the tokens it sent.
//!
//! The first line is the null engine as fast as it goes, where several tokens of a stream go out together. In the others
//! a step takes as long as with a real engine, and nearly every token is a wake-up and a write.

mod clients;
mod null;

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// Rounds that are measured; one before them warms up.
const ROUNDS: usize = 16;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|argument| argument == "--server") {
        let step_ms = arguments.get(at + 1).and_then(|number| number.parse().ok()).unwrap_or(0);
        return null::serve(Duration::from_millis(step_ms));
    }
    for (streams, step_ms) in [(256, 0), (256, 10), (64, 10)] {
        let Some(measured) = measure(streams, step_ms) else {
            eprintln!("the processor time of a process is read from /proc, which is not here");
            return ExitCode::FAILURE;
        };
        let Measured { tokens, cpu, wall } = measured;
        println!(
            "{streams:4} streams of {} tokens, {step_ms:2} ms a step: {:5.1} us of CPU a token, {:6.0} tokens a second",
            clients::TOKENS,
            cpu.as_secs_f64() * 1e6 / tokens as f64,
            tokens as f64 / wall.as_secs_f64(),
        );
    }
    ExitCode::SUCCESS
}

struct Measured {
    tokens: usize,
    cpu: Duration,
    wall: Duration,
}

fn measure(streams: usize, step_ms: u64) -> Option<Measured> {
    let program = std::env::current_exe().expect("this program has a path");
    let mut server = Command::new(program);
    server.args(["--server", &step_ms.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut server = server.spawn().expect("this program can be started again");
    let mut address = String::new();
    let said = server.stdout.take().expect("it is piped");
    BufReader::new(said).read_line(&mut address).expect("the server says where it is");
    clients::round(address.trim(), streams);
    let (before, begun) = (cpu_time(&server), Instant::now());
    (0..ROUNDS).for_each(|_| clients::round(address.trim(), streams));
    let (wall, after) = (begun.elapsed(), cpu_time(&server));
    // The server ends when its input does.
    let _ = server.stdin.take().map(|mut input| input.flush());
    let _ = server.wait();
    Some(Measured { tokens: ROUNDS * streams * clients::TOKENS, cpu: after? - before?, wall })
}

/// User and system time of all threads: the 14th and 15th field of Linux's table, in hundredths of a second.
fn cpu_time(process: &Child) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.id())).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks = fields.split_whitespace().skip(11).take(2).map(|field| field.parse::<u64>().ok());
    Some(Duration::from_millis(10 * ticks.sum::<Option<u64>>()?))
}
