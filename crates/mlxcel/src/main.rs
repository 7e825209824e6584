//! The program `mlxcel`.

fn main() -> std::process::ExitCode {
    mlxcel::run_command_line()
}
