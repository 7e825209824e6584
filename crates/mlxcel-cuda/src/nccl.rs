//! Sums and joins among GPUs by NVIDIA's NCCL, which is looked for when a group is joined. Nothing here links to it.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use mlxcel_engine::{EngineError, Seat, Sharing};
use mlxcel_ir::DType;

use crate::context::Context;
use crate::driver::{Address, Handle};
use crate::error::{CudaError, Result};
use crate::exchange::{Exchange, Kind};
use crate::{CudaEngine, NAME};

const LIBRARY: &str = "libnccl.so.2";

/// What a first member makes and all others need.
const INVITATION: usize = 128;

/// An invitation, as NCCL hands it over: by value.
#[repr(C)]
#[derive(Clone, Copy)]
struct UniqueId([c_char; INVITATION]);

type Code = c_int;

struct Api {
    unique_id: unsafe extern "C" fn(*mut UniqueId) -> Code,
    init_rank: unsafe extern "C" fn(*mut *mut c_void, c_int, UniqueId, c_int) -> Code,
    all_reduce: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        c_int,
        c_int,
        *mut c_void,
        *mut c_void,
    ) -> Code,
    all_gather:
        unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, *mut c_void, *mut c_void) -> Code,
    error_string: unsafe extern "C" fn(Code) -> *const c_char,
}

impl Api {
    /// It stays loaded: its threads may outlive a group.
    fn load(name: &'static str) -> Result<Api> {
        let missing = |reason: String| CudaError::NoNccl { library: name, reason };
        // SAFETY: loading NCCL runs its initialisers, which NVIDIA answers for.
        let library = unsafe { libloading::Library::new(name) }.map_err(|e| missing(e.to_string()))?;
        let library: &'static libloading::Library = Box::leak(Box::new(library));
        macro_rules! entry {
            ($name:literal) => {
                // SAFETY: the signatures are those of NCCL's header, the same in every version since 2.10.
                *unsafe { library.get($name) }.map_err(|e| missing(e.to_string()))?
            };
        }
        Ok(Api {
            unique_id: entry!(b"ncclGetUniqueId\0"),
            init_rank: entry!(b"ncclCommInitRank\0"),
            all_reduce: entry!(b"ncclAllReduce\0"),
            all_gather: entry!(b"ncclAllGather\0"),
            error_string: entry!(b"ncclGetErrorString\0"),
        })
    }

    fn check(&self, call: &'static str, code: Code) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: the function takes any number and returns a constant text.
        let text = unsafe { CStr::from_ptr((self.error_string)(code)) };
        Err(CudaError::Call { call, code, name: text.to_string_lossy().into_owned() })
    }
}

/// A seat in a group.
struct Member {
    api: Api,
    communicator: *mut c_void,
    seat: Seat,
    /// The device's context, without which the communicator is nothing.
    _ctx: Arc<Context>,
}

// SAFETY: NCCL takes calls from any thread; calls of one communicator come from one program at a time, in the order of its
// stream.
unsafe impl Send for Member {}
// SAFETY: as above.
unsafe impl Sync for Member {}

impl Exchange for Member {
    fn start(
        &self,
        kind: Kind,
        (from, to): (Address, Address),
        (count, dtype): (usize, DType),
        stream: Handle,
    ) -> Result<()> {
        let (from, to) = (from as *const c_void, to as *mut c_void);
        let (stream, communicator) = (stream as *mut c_void, self.communicator);
        let number = number(dtype)?;
        // SAFETY: both are memory of the device of the size that lowering gave them; zero is NCCL's number of sums.
        unsafe {
            match kind {
                Kind::Sum => {
                    let code = (self.api.all_reduce)(from, to, count, number, 0, communicator, stream);
                    self.api.check("ncclAllReduce", code)
                }
                Kind::Join => {
                    let code = (self.api.all_gather)(from, to, count, number, communicator, stream);
                    self.api.check("ncclAllGather", code)
                }
            }
        }
    }
}

/// NCCL's number of a type.
fn number(dtype: DType) -> Result<c_int> {
    Ok(match dtype {
        DType::I8 => 0,
        DType::U8 | DType::Bool => 1,
        DType::I32 => 2,
        DType::U32 => 3,
        DType::I64 => 4,
        DType::U64 => 5,
        DType::F16 => 6,
        DType::F32 => 7,
        DType::F64 => 8,
        DType::BF16 => 9,
        other => return Err(CudaError::NotExchanged { dtype: other }),
    })
}

/// The seat of this process: engines come and go, a group stays.
static SEAT: Mutex<Option<Arc<Member>>> = Mutex::new(None);

impl Sharing for CudaEngine {
    fn likeness(&self) -> String {
        if self.ctx.exact { format!("{NAME}, exact") } else { NAME.to_string() }
    }

    fn invitation(&self) -> std::result::Result<Vec<u8>, EngineError> {
        if SEAT.lock().unwrap_or_else(PoisonError::into_inner).is_some() {
            // The members know each other already.
            return Ok(vec![]);
        }
        self.ctx.enter()?;
        let api = Api::load(LIBRARY)?;
        let mut id = UniqueId([0; INVITATION]);
        // SAFETY: the place has the size that NCCL writes.
        let code = unsafe { (api.unique_id)(&mut id) };
        api.check("ncclGetUniqueId", code)?;
        Ok(id.0.iter().map(|&c| c as u8).collect())
    }

    fn join(&self, seat: &Seat, invitation: &[u8]) -> std::result::Result<(), EngineError> {
        let mut known = SEAT.lock().unwrap_or_else(PoisonError::into_inner);
        let member = match &*known {
            Some(member) if member.seat == *seat => member.clone(),
            Some(_) => return Err(CudaError::OtherGroup.into()),
            None => known.insert(Arc::new(self.sit_down(seat, invitation)?)).clone(),
        };
        // Who joins twice is where it was.
        let _ = self.ctx.exchange.set(member);
        Ok(())
    }
}

impl CudaEngine {
    fn sit_down(&self, seat: &Seat, invitation: &[u8]) -> Result<Member> {
        let bytes: [u8; INVITATION] = invitation.try_into().map_err(|_| CudaError::BadInvitation)?;
        self.ctx.enter()?;
        let api = Api::load(LIBRARY)?;
        let count = |n: usize| c_int::try_from(n).unwrap_or(c_int::MAX);
        let mut communicator = std::ptr::null_mut();
        // SAFETY: the place takes a pointer, and the invitation has its size.
        let code = unsafe {
            let id = UniqueId(bytes.map(|b| b as c_char));
            (api.init_rank)(&mut communicator, count(seat.addresses.len()), id, count(seat.rank))
        };
        api.check("ncclCommInitRank", code)?;
        Ok(Member { api, communicator, seat: seat.clone(), _ctx: self.ctx.clone() })
    }
}

#[cfg(test)]
mod tests {
    use mlxcel_engine::{Engine as _, Feeds, NoWeights};
    use mlxcel_ir::{Bindings, Builder, Graph, HostTensor, Op, shape};

    use super::*;
    use crate::CudaOptions;
    use crate::fake::{Fake, Shared};

    /// Remembers what was asked of it.
    #[derive(Default)]
    struct Recorded(Mutex<Vec<(Kind, usize, DType)>>);

    impl Exchange for Recorded {
        fn start(
            &self,
            kind: Kind,
            (from, to): (Address, Address),
            numbers: (usize, DType),
            _: Handle,
        ) -> Result<()> {
            assert!(from != to, "what is sent is not what is received");
            self.0.lock().unwrap().push((kind, numbers.0, numbers.1));
            Ok(())
        }
    }

    fn graph() -> Graph {
        let b = Builder::new();
        let x = b.input("x", DType::BF16, shape![4, 6]);
        b.output("sum", b.apply(Op::AllReduce, &[x])[0]);
        b.output("rows", b.apply(Op::AllGather { axis: 0, members: 2 }, &[x])[0]);
        b.output("columns", b.apply(Op::AllGather { axis: 1, members: 2 }, &[x])[0]);
        b.finish().unwrap()
    }

    fn feeds() -> Feeds {
        let mut feeds = Feeds::new();
        feeds.insert("x", HostTensor::new(&[4, 6], &[half::bf16::ONE; 24]));
        feeds
    }

    #[test]
    fn a_program_asks_for_each_exchange_with_its_count_and_type() {
        let driver = Box::new(Fake::new(&Shared::default()));
        let engine = CudaEngine::with_driver(driver, CudaOptions::default()).unwrap();
        let recorded = Arc::new(Recorded::default());
        assert!(engine.ctx.exchange.set(recorded.clone()).is_ok());
        let mut program = engine.compile(&graph(), &NoWeights, &Bindings::new()).unwrap();
        let ticket = program.submit(&feeds(), &["sum", "rows", "columns"]).unwrap();
        let shapes: Vec<_> = program.collect(ticket).unwrap().iter().map(|t| t.shape().to_vec()).collect();
        assert_eq!(shapes, [vec![4, 6], vec![8, 6], vec![4, 12]]);
        let bf16 = DType::BF16;
        assert_eq!(
            *recorded.0.lock().unwrap(),
            [(Kind::Sum, 24, bf16), (Kind::Join, 24, bf16), (Kind::Join, 24, bf16)]
        );
    }

    #[test]
    fn an_exchange_without_a_group_is_refused_before_anything_runs() {
        let driver = Box::new(Fake::new(&Shared::default()));
        let engine = CudaEngine::with_driver(driver, CudaOptions::default()).unwrap();
        let mut program = engine.compile(&graph(), &NoWeights, &Bindings::new()).unwrap();
        let refused = program.submit(&feeds(), &["sum"]).unwrap_err().to_string();
        assert!(refused.contains("joined no group"), "{refused}");
    }

    #[test]
    fn a_machine_without_nccl_is_told_what_to_install() {
        let error = Api::load("libno-such-nccl.so").err().unwrap().to_string();
        assert!(error.contains("libno-such-nccl.so") && error.contains("nvidia-nccl-cu13"), "{error}");
        let driver = Box::new(Fake::new(&Shared::default()));
        let engine = CudaEngine::with_driver(driver, CudaOptions::default()).unwrap();
        let seat = Seat { rank: 0, addresses: vec![] };
        let error = engine.join(&seat, b"short").unwrap_err().to_string();
        assert!(error.contains("invitation"), "{error}");
    }
}
