//! Every environment variable that has a say, with what it does: the one place where they are documented. Who reads
//! one is elsewhere; a test finds those that are read and not listed.

/// A variable and what it does.
pub struct Variable {
    pub name: &'static str,
    pub meaning: &'static str,
}

const fn variable(name: &'static str, meaning: &'static str) -> Variable {
    Variable { name, meaning }
}

/// In the order of the documentation.
pub const VARIABLES: &[Variable] = &[
    variable("MLXCEL_CACHE", "The folder where fetched models are kept."),
    variable("XDG_CACHE_HOME", "Without MLXCEL_CACHE, models are kept in the folder mlxcel below this one."),
    variable("LOCALAPPDATA", "The same on Windows, and for what is kept of a chat."),
    variable(
        "HOME",
        "Without the others, models are kept in .cache/mlxcel below this folder, lines in .local/state/mlxcel.",
    ),
    variable("MLXCEL_HISTORY", "The file where lines typed in a chat are kept; empty: none are kept."),
    variable("XDG_STATE_HOME", "Without MLXCEL_HISTORY, lines are kept in mlxcel/history below this folder."),
    variable("MLXCEL_INDEX_URL", "The index of Python packages that models come from."),
    variable("PIP_INDEX_URL", "pip's package index: used where MLXCEL_INDEX_URL is not set."),
    variable("UV_DEFAULT_INDEX", "uv's package index: used where neither of the above is set."),
    variable("UV_INDEX_URL", "The older name of UV_DEFAULT_INDEX."),
    variable("PATH", "Where pip and npm are looked for."),
    variable("NO_COLOR", "Set to anything: no colour, unless --color asks for it."),
    variable("CLICOLOR_FORCE", "Set to anything but 0: colour, terminal or not."),
    variable("CLICOLOR", "Set to 0: no colour."),
    variable("TERM", "dumb: no colour, no moving progress bars."),
    variable("COLUMNS", "How wide help is where the output is no terminal."),
];
