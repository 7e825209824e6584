//! IREE's compiler, from StableHLO to the bytes that its runtime loads: by its library, or by the program `iree-compile`
//! in a process of its own. It knows flags and text, and no device.
#![allow(unsafe_code)]

use std::ffi::{CString, c_char, c_int, c_void};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use super::api::{self, Api};
use crate::error::XlaError;

/// The version of the runtime that is built in; the compiler's must begin with it.
const OURS: &str = "3.13.";

/// A compiler of the right version.
pub struct Compiler {
    path: PathBuf,
    revision: String,
    form: Form,
}

enum Form {
    Library(&'static Api),
    Program,
}

impl Compiler {
    /// Opens a compiler. What ends as shared libraries do is one; anything else is a program.
    pub fn open(path: &Path) -> Result<Self, XlaError> {
        let is_library = path.extension().is_some_and(|e| ["so", "dylib", "dll"].iter().any(|l| e == *l));
        let (form, revision) = if is_library {
            let api = Api::open(path)?;
            (Form::Library(api), api.revision())
        } else {
            (Form::Program, program_version(path)?)
        };
        if !revision.starts_with(OURS) {
            let (path, ours) = (path.to_path_buf(), OURS.trim_end_matches('.'));
            return Err(XlaError::CompilerVersion { path, found: revision, ours });
        }
        Ok(Compiler { path: path.to_path_buf(), revision, form })
    }

    /// The build, for the names of what it compiled.
    pub(super) fn revision(&self) -> &str {
        &self.revision
    }

    /// The module as the runtime loads it.
    pub(super) fn compile(&self, what: &str, module: &str, flags: &[&str]) -> Result<Vec<u8>, XlaError> {
        let made = match &self.form {
            Form::Library(api) => Task::new(api, flags).and_then(|task| {
                task.parse(module)?;
                task.compile()
            }),
            Form::Program => self.run(module, flags),
        };
        made.map_err(|message| XlaError::Compile { what: what.to_string(), message })
    }

    /// Reads and verifies a module, and compiles nothing. Only the library can.
    pub fn verify(&self, what: &str, module: &str) -> Result<(), XlaError> {
        let Form::Library(api) = &self.form else {
            let reason = "a program cannot verify modules; name the library".to_string();
            return Err(XlaError::NotACompiler { path: self.path.clone(), reason });
        };
        let checked = Task::new(api, &[]).and_then(|task| task.parse(module));
        checked.map_err(|message| XlaError::Compile { what: what.to_string(), message })
    }

    fn run(&self, module: &str, flags: &[&str]) -> Result<Vec<u8>, String> {
        let failed = |e: std::io::Error| format!("{} could not be run: {e}", self.path.display());
        let folder = tempfile::tempdir().map_err(failed)?;
        let (from, to) = (folder.path().join("module.mlir"), folder.path().join("module.vmfb"));
        let mut file = std::fs::File::create(&from).map_err(failed)?;
        file.write_all(module.as_bytes()).map_err(failed)?;
        let output = Command::new(&self.path).arg(&from).arg("-o").arg(&to).args(flags).output();
        let output = output.map_err(failed)?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_string());
        }
        std::fs::read(&to).map_err(failed)
    }
}

/// What `--version` says: a line that ends in `version 1.2.3 @ revision`.
fn program_version(path: &Path) -> Result<String, XlaError> {
    let not = |reason: String| XlaError::NotACompiler { path: path.to_path_buf(), reason };
    let output = Command::new(path).arg("--version").output().map_err(|e| not(e.to_string()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let found = text.lines().find_map(|line| line.split_once("IREE compiler version "));
    found
        .map(|(_, version)| version.trim().to_string())
        .ok_or_else(|| not("it does not say its version".into()))
}

/// One module on its way through the library. Frees what it holds.
struct Task<'a> {
    api: &'a Api,
    session: *mut api::Session,
    invocation: *mut api::Invocation,
    /// The errors so far. Boxed, since the compiler keeps its address.
    errors: Box<Mutex<String>>,
}

impl<'a> Task<'a> {
    fn new(api: &'a Api, flags: &[&str]) -> Result<Self, String> {
        let session = {
            // A session registers LLVM's targets without a lock: a second one, made at once with the first, would take
            // a target that is half registered for none, and the library dies of that.
            static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
            let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
            // SAFETY: the library is initialised.
            unsafe { (api.session)() }
        };
        let errors = Box::new(Mutex::new(String::new()));
        let mut task = Task { api, session, invocation: std::ptr::null_mut(), errors };
        let flags: Vec<CString> = flags.iter().filter_map(|f| CString::new(*f).ok()).collect();
        let pointers: Vec<*const c_char> = flags.iter().map(|f| f.as_ptr()).collect();
        // SAFETY: so many texts lie there, and are read during the call.
        api.check(unsafe { (api.set_flags)(session, pointers.len() as c_int, pointers.as_ptr()) })?;
        // SAFETY: the session lives until the task is dropped, after the invocation.
        task.invocation = unsafe { (api.invocation)(session) };
        let errors: *const Mutex<String> = &*task.errors;
        // SAFETY: the messages go to what the task owns until the invocation is gone.
        unsafe { (api.on_message)(task.invocation, 0, collect, errors.cast_mut().cast()) };
        Ok(task)
    }

    fn said(&self) -> String {
        self.errors.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }

    fn parse(&self, module: &str) -> Result<(), String> {
        let text = CString::new(module).map_err(|_| "the module's text holds a zero".to_string())?;
        let bytes = text.as_bytes_with_nul();
        let mut source = std::ptr::null_mut();
        // SAFETY: the text with its zero lies there until the source is freed below.
        let failure = unsafe {
            (self.api.source)(self.session, c"module".as_ptr(), text.as_ptr(), bytes.len(), true, &mut source)
        };
        self.api.check(failure)?;
        // SAFETY: both belong to this session.
        let parsed = unsafe { (self.api.parse)(self.invocation, source) };
        // SAFETY: parsing is over, and nothing else holds the source.
        unsafe { (self.api.free_source)(source) };
        if parsed { Ok(()) } else { Err(self.said()) }
    }

    fn compile(&self) -> Result<Vec<u8>, String> {
        // SAFETY: the invocation has parsed its module.
        if !unsafe { (self.api.pipeline)(self.invocation, api::PIPELINE_STD) } {
            return Err(self.said());
        }
        let mut output = std::ptr::null_mut();
        // SAFETY: the call fills in the output.
        self.api.check(unsafe { (self.api.output)(&mut output) })?;
        let result = self.bytes(output);
        // SAFETY: the bytes were copied.
        unsafe { (self.api.free_output)(output) };
        result
    }

    fn bytes(&self, output: *mut api::Output) -> Result<Vec<u8>, String> {
        // SAFETY: the invocation has compiled its module, and the output is open.
        self.api.check(unsafe { (self.api.write_bytecode)(self.invocation, output) })?;
        let (mut start, mut size) = (std::ptr::null_mut::<c_void>(), 0);
        // SAFETY: everything was written.
        self.api.check(unsafe { (self.api.map)(output, &mut start, &mut size) })?;
        // SAFETY: the compiler says that so many bytes lie there until the output is freed.
        Ok(unsafe { std::slice::from_raw_parts(start.cast::<u8>(), size as usize) }.to_vec())
    }
}

impl Drop for Task<'_> {
    fn drop(&mut self) {
        if !self.invocation.is_null() {
            // SAFETY: nothing uses the invocation any more.
            unsafe { (self.api.free_invocation)(self.invocation) };
        }
        // SAFETY: its invocation is gone.
        unsafe { (self.api.free_session)(self.session) };
    }
}

/// Keeps the errors among the messages.
unsafe extern "C" fn collect(severity: c_int, start: *const c_char, size: usize, errors: *mut c_void) {
    if severity != api::SEVERITY_ERROR || start.is_null() {
        return;
    }
    // SAFETY: the compiler says that so many bytes lie there during the call.
    let message = String::from_utf8_lossy(unsafe { std::slice::from_raw_parts(start.cast::<u8>(), size) });
    // SAFETY: this is what the task handed over, which outlives the invocation.
    let errors = unsafe { &*errors.cast::<Mutex<String>>() };
    let mut all = errors.lock().unwrap_or_else(|e| e.into_inner());
    if !all.is_empty() {
        all.push('\n');
    }
    all.push_str(message.trim());
}
