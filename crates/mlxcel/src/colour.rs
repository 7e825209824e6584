//! Whether there is colour: what `--color` says, else what the environment and the terminal say. Set once, before
//! anything is printed, so that errors about arguments follow it too.

use std::ffi::OsString;

use clap::ValueEnum;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum When {
    /// On a terminal, unless the environment says otherwise.
    #[default]
    Auto,
    Always,
    Never,
}

/// Takes effect for all of clap's output and for what is printed through `anstream`.
pub fn choose(arguments: impl Iterator<Item = OsString>) {
    let choice = match asked(arguments) {
        // A wrong value is refused by the parser.
        None | Some(When::Auto) => anstream::ColorChoice::Auto,
        Some(When::Always) => anstream::ColorChoice::Always,
        Some(When::Never) => anstream::ColorChoice::Never,
    };
    choice.write_global();
}

/// What the last `--color` before `--` says.
fn asked(arguments: impl Iterator<Item = OsString>) -> Option<When> {
    let arguments: Vec<OsString> = arguments.take_while(|argument| argument != "--").collect();
    let value = |(i, argument): (usize, &OsString)| {
        let text = argument.to_str()?;
        match text.strip_prefix("--color")? {
            "" => arguments.get(i + 1)?.to_str().map(str::to_string),
            value => value.strip_prefix('=').map(str::to_string),
        }
    };
    let last = arguments.iter().enumerate().rev().find_map(value)?;
    When::from_str(&last, false).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_flag_before_the_end_of_flags_counts() {
        let asked = |line: &str| asked(line.split(' ').map(OsString::from));
        assert_eq!(asked("mlxcel devices"), None);
        assert_eq!(asked("mlxcel --color never devices"), Some(When::Never));
        assert_eq!(asked("mlxcel devices --color=always"), Some(When::Always));
        assert_eq!(asked("mlxcel --color=always devices --color auto"), Some(When::Auto));
        assert_eq!(asked("mlxcel embed -- --color=always"), None);
        for line in ["mlxcel --color", "mlxcel --color=pink", "mlxcel --colorful"] {
            assert_eq!(asked(line), None, "{line}");
        }
    }
}
