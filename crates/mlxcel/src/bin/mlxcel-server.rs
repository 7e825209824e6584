//! The program `mlxcel-server`: `mlxcel serve` under the flags and variables of llama-server.

fn main() -> std::process::ExitCode {
    mlxcel::run_server()
}
