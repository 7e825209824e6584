//! A file truncated while it is mapped ends the process with a sentence and exit code 74, not with a silent
//! signal. This test runs itself: the child process maps a checkpoint, truncates it and reads it.
#![allow(clippy::unwrap_used)]

#[cfg(unix)]
fn main() {
    const CHILD: &str = "MLXCEL_TRUNCATION_CHILD";
    if let Some(folder) = std::env::var_os(CHILD) {
        unix::read_truncated(std::path::Path::new(&folder));
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let this = std::env::current_exe().unwrap();
    let child = std::process::Command::new(this).env(CHILD, folder.path()).output().unwrap();
    let stderr = String::from_utf8_lossy(&child.stderr);
    assert_eq!(child.status.code(), Some(74), "{:?} {stderr}", child.status);
    assert!(stderr.contains("a model file was truncated or became unreadable while in use"), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    println!("a_truncated_file_ends_the_process_with_a_sentence ... ok");
}

#[cfg(not(unix))]
fn main() {}

#[cfg(unix)]
mod unix {
    use std::path::Path;

    use mlxcel_weights::{Checkpoint, install_truncation_guard};

    pub(crate) fn read_truncated(folder: &Path) {
        const DATA: usize = 1 << 20;
        install_truncation_guard();
        let header = format!(r#"{{"x":{{"dtype":"U8","shape":[{DATA}],"data_offsets":[0,{DATA}]}}}}"#);
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend_from_slice(header.as_bytes());
        file.resize(file.len() + DATA, 1);
        let path = folder.join("model.safetensors");
        std::fs::write(&path, file).unwrap();
        let tensor = Checkpoint::open(folder).unwrap().tensor("x").unwrap();
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(100).unwrap();
        let sum: u64 = tensor.parts[0].iter().map(|&b| b as u64).sum();
        panic!("the truncated file was read, sum {sum}");
    }
}
