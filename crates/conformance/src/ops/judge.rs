//! Runs cases on an engine and compares what comes out. Integers must be equal; a float must come within a
//! tolerance of its type, relative to its own size or to the typical size in its tensor, whichever is larger,
//! since the error of a sum is relative to its terms.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use mlxcel_engine::{Engine, EngineError, ReferenceEngine};
use mlxcel_ir::{DType, HostTensor};

use super::case::{Case, Step};

/// How an engine did.
#[derive(Debug)]
pub struct Report {
    pub engine: &'static str,
    /// How many cases ran.
    pub cases: usize,
    pub failures: Vec<Failure>,
}

/// A case that an engine got wrong.
#[derive(Debug)]
pub struct Failure {
    pub case: String,
    pub fault: Fault,
}

/// What was wrong.
#[derive(Debug)]
pub enum Fault {
    /// The engine returned an error.
    Refused {
        doing: &'static str,
        error: EngineError,
    },
    Panicked {
        message: String,
    },
    Type {
        step: usize,
        output: String,
        got: String,
        wanted: String,
    },
    Number(Box<Number>),
    /// A rule of the seam that is not a number.
    Rule {
        reason: String,
    },
}

/// The worst element of an output.
#[derive(Debug)]
pub struct Number {
    pub step: usize,
    pub output: String,
    pub index: Vec<usize>,
    pub got: String,
    pub wanted: String,
    /// As a share of the element's scale.
    pub error: f64,
    pub allowed: f64,
    /// Elements beyond the tolerance, and all of them.
    pub wrong: (usize, usize),
}

impl Report {
    pub fn is_clean(&self) -> bool {
        self.failures.is_empty()
    }

    /// Panics with every failure, or if nothing was tried.
    #[track_caller]
    pub fn assert_clean(&self) {
        assert!(self.cases > 0, "no case ran");
        assert!(self.is_clean(), "{self}");
    }

    pub(crate) fn new(engine: &dyn Engine) -> Self {
        Report { engine: engine.caps().name, cases: 0, failures: vec![] }
    }

    pub(crate) fn record(&mut self, case: &str, outcome: Result<(), Fault>) {
        self.cases += 1;
        if let Err(fault) = outcome {
            self.failures.push(Failure { case: case.to_string(), fault });
        }
    }

    pub(crate) fn merge(&mut self, other: Report) {
        self.cases += other.cases;
        self.failures.extend(other.failures);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "the {} engine fails {} of {} cases", self.engine, self.failures.len(), self.cases)?;
        self.failures.iter().try_for_each(|failure| writeln!(f, "  {}: {}", failure.case, failure.fault))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Refused { doing, error } => write!(f, "{doing} failed: {error}"),
            Fault::Panicked { message } => write!(f, "panicked: {message}"),
            Fault::Type { step, output, got, wanted } => {
                write!(f, "step {step}, '{output}' is {got}, expected {wanted}")
            }
            Fault::Number(n) => write!(
                f,
                "step {}, '{}'{:?} is {}, expected {} (error {:.1e}, allowed {:.1e}; {} of {} elements)",
                n.step, n.output, n.index, n.got, n.wanted, n.error, n.allowed, n.wrong.0, n.wrong.1
            ),
            Fault::Rule { reason } => f.write_str(reason),
        }
    }
}

impl Fault {
    pub(crate) fn refused(doing: &'static str) -> impl FnOnce(EngineError) -> Fault {
        move |error| Fault::Refused { doing, error }
    }

    pub(crate) fn rule(reason: impl Into<String>) -> Fault {
        Fault::Rule { reason: reason.into() }
    }
}

/// Runs `body`; a panic becomes a fault, so that the other cases still run.
pub(crate) fn guarded<T>(body: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
    let message = |cause: Box<dyn Any + Send>| match cause.downcast::<String>() {
        Ok(text) => *text,
        Err(cause) => cause.downcast::<&str>().map_or("no message".to_string(), |text| text.to_string()),
    };
    catch_unwind(AssertUnwindSafe(body))
        .unwrap_or_else(|cause| Err(Fault::Panicked { message: message(cause) }))
}

/// The outputs of every step.
pub(crate) fn outputs(engine: &dyn Engine, case: &Case) -> Result<Vec<Vec<HostTensor>>, Fault> {
    guarded(|| {
        let compiled = engine.compile(&case.graph, &case.weights, &case.dims);
        let mut program = compiled.map_err(Fault::refused("compiling"))?;
        let names = case.output_names();
        let mut run = |step: &Step| {
            let ticket = program.submit(&step.feeds, &names).map_err(Fault::refused("a step"))?;
            program.collect(ticket).map_err(Fault::refused("collecting"))
        };
        case.steps.iter().map(&mut run).collect()
    })
}

/// Judges one case by its own expectations, or else by the reference engine.
pub(crate) fn judge(engine: &dyn Engine, case: &Case) -> Result<(), Fault> {
    let got = outputs(engine, case)?;
    let expected: Option<Vec<_>> = case.steps.iter().map(|s| s.expected.clone()).collect();
    let wanted = match expected {
        Some(expected) => expected,
        None => outputs(&ReferenceEngine, case)?,
    };
    for (step, (got, wanted)) in got.iter().zip(&wanted).enumerate() {
        for ((name, got), wanted) in case.output_names().iter().zip(got).zip(wanted) {
            compare((step, name), got, wanted, case.slack)?;
        }
    }
    Ok(())
}

/// The relative error that a result of this type may have after one op that computes in f32 or better and
/// rounds at the end; decompositions round a few times on the way.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-9,
        DType::F32 => 2e-5,
        DType::F16 => 4e-3,
        DType::BF16 => 3e-2,
        DType::F8E4M3 => 0.13,
        DType::F8E5M2 => 0.26,
        _ => 0.0,
    }
}

/// Compares two tensors, naming the worst element.
pub(crate) fn compare(
    (step, output): (usize, &str),
    got: &HostTensor,
    wanted: &HostTensor,
    slack: f64,
) -> Result<(), Fault> {
    let ty = |t: &HostTensor| format!("{}{:?}", t.dtype(), t.shape());
    if got.dtype() != wanted.dtype() || got.shape() != wanted.shape() {
        let (got, wanted) = (ty(got), ty(wanted));
        return Err(Fault::Type { step, output: output.to_string(), got, wanted });
    }
    if got.bytes() == wanted.bytes() {
        return Ok(());
    }
    let allowed = tolerance(wanted.dtype()) * slack;
    let errors = errors(got, wanted);
    let wrong = errors.iter().filter(|e| **e > allowed).count();
    let Some(worst) = (0..errors.len()).max_by(|&a, &b| errors[a].total_cmp(&errors[b])) else {
        return Ok(());
    };
    if wrong == 0 {
        return Ok(());
    }
    let (mut index, mut rest) = (vec![0; wanted.shape().len()], worst);
    for (place, &n) in index.iter_mut().zip(wanted.shape()).rev() {
        (*place, rest) = (rest % n, rest / n);
    }
    let (error, wrong) = (errors[worst], (wrong, errors.len()));
    let (got, wanted) = (element(got, worst), element(wanted, worst));
    let output = output.to_string();
    Err(Fault::Number(Box::new(Number { step, output, index, got, wanted, error, allowed, wrong })))
}

fn element(t: &HostTensor, at: usize) -> String {
    match t.dtype() {
        DType::U64 => (t.to_i64()[at] as u64).to_string(),
        d if d.is_float() => t.to_f64()[at].to_string(),
        _ => t.to_i64()[at].to_string(),
    }
}

/// The error of each element as a share of its scale; infinite where the kinds of number differ.
fn errors(got: &HostTensor, wanted: &HostTensor) -> Vec<f64> {
    if !wanted.dtype().is_float() {
        let pairs = got.to_i64().into_iter().zip(wanted.to_i64());
        return pairs.map(|(a, b)| if a == b { 0.0 } else { f64::INFINITY }).collect();
    }
    let wanted = wanted.to_f64();
    let finite: Vec<f64> = wanted.iter().copied().filter(|v| v.is_finite()).collect();
    let typical = (finite.iter().map(|v| v * v).sum::<f64>() / finite.len().max(1) as f64).sqrt();
    let error = |(a, &b): (f64, &f64)| match (a.is_nan(), b.is_nan()) {
        (true, true) => 0.0,
        _ if a == b => 0.0,
        (false, false) if a.is_finite() && b.is_finite() => (a - b).abs() / b.abs().max(typical),
        _ => f64::INFINITY,
    };
    got.to_f64().into_iter().zip(&wanted).map(error).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(got: &[f32], wanted: &[f32]) -> Result<(), Fault> {
        let tensor = |v: &[f32]| HostTensor::new(&[v.len()], v);
        compare((0, "y"), &tensor(got), &tensor(wanted), 1.0)
    }

    #[test]
    fn an_error_is_judged_by_the_size_of_its_tensor() {
        assert!(verdict(&[1e-6, 1.0], &[0.0, 1.0]).is_ok());
        assert!(verdict(&[1e-6, 0.0], &[0.0, 0.0]).is_err());
        assert!(verdict(&[1.0, 1.001], &[1.0, 1.0]).is_err());
    }

    #[test]
    fn only_the_same_kind_of_infinity_and_nan_agree() {
        assert!(verdict(&[f32::NAN, f32::INFINITY], &[f32::NAN, f32::INFINITY]).is_ok());
        assert!(verdict(&[f32::NAN], &[1.0]).is_err());
        assert!(verdict(&[1.0], &[f32::NAN]).is_err());
        assert!(verdict(&[f32::INFINITY], &[f32::NEG_INFINITY]).is_err());
    }

    #[test]
    fn the_worst_element_is_named_by_its_index() {
        let (a, b) = (HostTensor::new(&[2, 2], &[1i32, 2, 3, 4]), HostTensor::new(&[2, 2], &[1i32, 2, 9, 4]));
        let Err(Fault::Number(n)) = compare((3, "ids"), &a, &b, 1.0) else { panic!("3 is not 9") };
        assert_eq!((n.index, n.wrong, n.step), (vec![1, 0], (1, 4), 3));
    }

    #[test]
    fn a_panic_is_a_fault_of_its_case() {
        let fault = guarded(|| -> Result<(), Fault> { panic!("{} broke", "it") });
        assert!(matches!(fault, Err(Fault::Panicked { message }) if message == "it broke"));
    }
}
