//! The platforms that a release is made for, and what is particular about each. Knows nothing of how they are built.

/// One platform.
#[derive(Debug)]
pub(crate) struct Target {
    /// What people call it, in the names of archives.
    pub(crate) name: &'static str,
    pub(crate) triple: &'static str,
    /// The oldest C library that the programs run with, as cargo-zigbuild and wheels write it.
    pub(crate) glibc: Option<(u32, u32)>,
    pub(crate) kind: Kind,
    /// What ends the names of archives, for the CUDA that kernels are compiled for.
    pub(crate) suffix: &'static str,
    /// What Debian, RPM and Python call its processor.
    pub(crate) processor: Processor,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Linux,
    Windows,
    Mac,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Processor {
    X86,
    Arm,
}

/// Every platform, the one that most people have first.
pub(crate) const TARGETS: [Target; 4] = [
    Target {
        name: "linux-x86_64",
        triple: "x86_64-unknown-linux-gnu",
        glibc: Some((2, 28)),
        kind: Kind::Linux,
        suffix: "-cuda13",
        processor: Processor::X86,
    },
    Target {
        name: "linux-aarch64",
        triple: "aarch64-unknown-linux-gnu",
        glibc: Some((2, 28)),
        kind: Kind::Linux,
        suffix: "-cuda13",
        processor: Processor::Arm,
    },
    Target {
        name: "windows-x86_64",
        triple: "x86_64-pc-windows-gnu",
        glibc: None,
        kind: Kind::Windows,
        suffix: "-cuda13",
        processor: Processor::X86,
    },
    Target {
        name: "macos-arm64",
        triple: "aarch64-apple-darwin",
        glibc: None,
        kind: Kind::Mac,
        suffix: "",
        processor: Processor::Arm,
    },
];

/// The programs of a release.
pub(crate) const PROGRAMS: [&str; 2] = ["mlxcel", "mlxcel-server"];

impl Target {
    /// The file name of a program.
    pub(crate) fn program(&self, name: &str) -> String {
        if self.kind == Kind::Windows { format!("{name}.exe") } else { name.to_string() }
    }

    /// The file name of its archive.
    pub(crate) fn archive(&self) -> String {
        let ending = if self.kind == Kind::Windows { "zip" } else { "tar.gz" };
        format!("mlxcel-{}{}.{ending}", self.name, self.suffix)
    }

    /// The folder in its archive.
    pub(crate) fn folder(&self) -> String {
        format!("mlxcel-{}", self.name)
    }

    /// Whether programs for it run on this machine as they are.
    pub(crate) fn is_host(&self) -> bool {
        cfg!(target_os = "linux")
            && self.kind == Kind::Linux
            && cfg!(target_arch = "x86_64") == (self.processor == Processor::X86)
    }

    /// The platform as the tags of wheels write it.
    pub(crate) fn wheel_tag(&self) -> &'static str {
        match (self.kind, self.processor) {
            (Kind::Linux, Processor::X86) => "manylinux_2_28_x86_64",
            (Kind::Linux, Processor::Arm) => "manylinux_2_28_aarch64",
            (Kind::Windows, _) => "win_amd64",
            (Kind::Mac, _) => "macosx_11_0_arm64",
        }
    }

    pub(crate) fn debian_architecture(&self) -> &'static str {
        if self.processor == Processor::X86 { "amd64" } else { "arm64" }
    }
}
