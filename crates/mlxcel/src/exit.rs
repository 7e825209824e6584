//! What the process says by its exit code: the one place where the codes are documented.

/// A code and when it is returned.
pub struct Code {
    pub code: u8,
    pub meaning: &'static str,
}

/// Ended by Ctrl-C: 128 and the number of the signal, as shells report it.
pub const INTERRUPTED: u8 = 130;

/// All codes, the lowest first.
pub const CODES: &[Code] = &[
    Code { code: 0, meaning: "it worked, or who reads the output has closed it and wants no more" },
    Code { code: 1, meaning: "it failed; one line on standard error says what happened and what to do" },
    Code { code: 2, meaning: "the arguments are wrong; standard error says which" },
    Code { code: 129, meaning: "the terminal was closed (SIGHUP)" },
    Code { code: INTERRUPTED, meaning: "interrupted (SIGINT, Ctrl-C)" },
    Code { code: 143, meaning: "asked to end (SIGTERM)" },
];

/// Said with the codes: what a program that reads `--json` may rely on.
pub const NOTE: &str = "Errors are text on standard error with --json, too; standard output then has no object, \
                        so that what is there is always whole.";
