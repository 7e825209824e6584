//! Tests of programs whose executor fails, or gives other results than the module has. Nothing is computed here.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::any::Any;
use std::sync::{Arc, Mutex};

use mlxcel_engine::weights::Bytes;
use mlxcel_engine::{Engine as _, EngineError, Feeds, NoWeights, Program};
use mlxcel_ir::{Bindings, Builder, DType, Graph, HostTensor, shape};

use crate::emit::EmitOptions;
use crate::engine::{XlaEngine, XlaOptions};
use crate::error::XlaError;
use crate::executor::{Buffer, DeviceArray, Executable, Executor};

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Nothing,
    Compiling,
    Running,
    Reading,
    /// So many results come back.
    Results(usize),
}

/// A device that computes nothing, in which something goes wrong.
#[derive(Clone)]
struct Faulty(Arc<Mutex<Fault>>);

impl Faulty {
    fn now(&self, fault: Fault) -> Result<(), XlaError> {
        let message = "the device was told to".to_string();
        if *self.0.lock().unwrap() == fault { Err(XlaError::Pjrt { doing: "this", message }) } else { Ok(()) }
    }

    fn buffer(&self) -> Buffer {
        Buffer(Box::new(self.clone()))
    }
}

impl DeviceArray for Faulty {
    fn read(&self, _: &mut [u8]) -> Result<(), XlaError> {
        self.now(Fault::Reading)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Executable for Faulty {
    fn run(&self, _: &[&Buffer]) -> Result<Vec<Buffer>, XlaError> {
        self.now(Fault::Running)?;
        // The state and the output of `counting`.
        let count = if let Fault::Results(count) = *self.0.lock().unwrap() { count } else { 2 };
        Ok((0..count).map(|_| self.buffer()).collect())
    }
}

impl Executor for Faulty {
    fn device(&self) -> String {
        "a faulty device".to_string()
    }

    fn is_cpu(&self) -> bool {
        true
    }

    fn emit_options(&self) -> EmitOptions {
        EmitOptions::default()
    }

    fn compile(&self, _: &str, _: &str) -> Result<Arc<dyn Executable>, XlaError> {
        self.now(Fault::Compiling)?;
        Ok(Arc::new(self.clone()))
    }

    fn upload(&self, _: DType, _: &[usize], _: Bytes) -> Result<Buffer, XlaError> {
        Ok(self.buffer())
    }

    fn zeros(&self, _: DType, _: &[usize]) -> Result<Buffer, XlaError> {
        Ok(self.buffer())
    }
}

/// A state of as many entries as there are slots, to which every step adds one.
fn counting() -> Graph {
    let b = Builder::new();
    let x = b.input("x", DType::F32, shape!["n"]);
    let count = b.state("count", DType::F32, shape!["slots"]);
    b.output("y", x + 1.0);
    b.update("count", count + 1.0);
    b.finish().unwrap()
}

fn program() -> (Faulty, Box<dyn Program>) {
    let device = Faulty(Arc::new(Mutex::new(Fault::Nothing)));
    let engine = XlaEngine::new(Arc::new(device.clone()), XlaOptions::default());
    let dims = Bindings::from([("slots".to_string(), 8)]);
    (device, engine.compile(&counting(), &NoWeights, &dims).unwrap())
}

fn step(program: &mut dyn Program, n: usize) -> Result<Vec<HostTensor>, EngineError> {
    let mut feeds = Feeds::new();
    feeds.insert("x", HostTensor::new(&[n], &vec![0f32; n]));
    let ticket = program.submit(&feeds, &["y"])?;
    program.collect(ticket)
}

#[test]
fn results_that_are_not_those_of_the_module_are_an_error() {
    for count in [0, 1, 3] {
        let (device, mut program) = program();
        *device.0.lock().unwrap() = Fault::Results(count);
        let error = step(&mut *program, 3).unwrap_err();
        let error = std::error::Error::source(&error).unwrap().to_string();
        assert!(error.contains(&format!("{count} results")) && error.contains('2'), "{error}");
        assert!(program.copy_state("slots", &[(0, 1)]).is_err() || count == 1);
    }
}

#[test]
fn a_program_is_lost_once_a_run_or_a_read_has_failed() {
    for fault in [Fault::Running, Fault::Reading, Fault::Results(0)] {
        let (device, mut program) = program();
        step(&mut *program, 3).unwrap();
        assert!(!program.is_lost());
        *device.0.lock().unwrap() = fault;
        step(&mut *program, 3).unwrap_err();
        assert!(program.is_lost(), "{fault:?}");
    }
    let (device, mut program) = program();
    *device.0.lock().unwrap() = Fault::Running;
    program.copy_state("slots", &[(0, 1)]).unwrap_err();
    assert!(program.is_lost());
}

#[test]
fn a_module_that_does_not_compile_loses_nothing() {
    let (device, mut program) = program();
    *device.0.lock().unwrap() = Fault::Compiling;
    step(&mut *program, 3).unwrap_err();
    assert!(!program.is_lost());
    *device.0.lock().unwrap() = Fault::Nothing;
    step(&mut *program, 3).unwrap();
}
