//! A driver that remembers what it was asked and fails where a test wants it to. It computes nothing: memory of the device
//! is only counted, and what comes back from it is zero.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::sync::{Arc, Mutex};

use crate::driver::{Address, Attribute, Described, Driver, Handle, Shape, Tiles};
use crate::error::{CudaError, Result};

#[derive(Default)]
pub(crate) struct Record {
    /// How often each call was made.
    pub(crate) calls: BTreeMap<&'static str, usize>,
    /// What is not given back.
    pub(crate) blocks: BTreeMap<Address, u64>,
    pub(crate) pinned: BTreeMap<usize, Vec<u64>>,
    pub(crate) handles: usize,
    pub(crate) events: usize,
    pub(crate) graphs: usize,
}

/// Shared with the test, which looks at it afterwards.
pub(crate) type Shared = Arc<Mutex<Record>>;

pub(crate) struct Fake {
    pub(crate) record: Shared,
    /// The call that fails, and from which time on.
    pub(crate) fails: Option<(&'static str, usize)>,
    pub(crate) memory: u64,
    pub(crate) capability: (i32, i32),
}

impl Fake {
    pub(crate) fn new(record: &Shared) -> Self {
        Fake { record: record.clone(), fails: None, memory: 1 << 30, capability: (9, 0) }
    }

    fn note(&self, call: &'static str) -> Result<std::sync::MutexGuard<'_, Record>> {
        let mut record = self.record.lock().unwrap();
        let count = record.calls.entry(call).or_insert(0);
        *count += 1;
        if self.fails.is_some_and(|(name, from)| name == call && *count >= from) {
            return Err(CudaError::Call { call, code: 999, name: "CUDA_ERROR_UNKNOWN".to_string() });
        }
        Ok(record)
    }

    fn handle(&self, call: &'static str) -> Result<Handle> {
        let mut record = self.note(call)?;
        record.handles += 1;
        Ok(record.handles)
    }
}

impl Driver for Fake {
    fn version(&self) -> Result<i32> {
        self.note("version").map(|_| 13000)
    }
    fn device_count(&self) -> Result<usize> {
        self.note("device_count").map(|_| 1)
    }
    fn device_name(&self, _: i32) -> Result<String> {
        self.note("device_name").map(|_| "Fake GPU".to_string())
    }
    fn attribute(&self, _: i32, attribute: Attribute) -> Result<i32> {
        drop(self.note("attribute")?);
        Ok(match attribute {
            Attribute::Major => self.capability.0,
            Attribute::Minor => self.capability.1,
            Attribute::Multiprocessors => 4,
            Attribute::SharedMemoryMax => 227 << 10,
            Attribute::MemoryClockKilohertz => 1000,
            Attribute::BusBits => 64,
        })
    }
    fn total_memory(&self, _: i32) -> Result<u64> {
        self.note("total_memory").map(|_| self.memory)
    }
    fn retain_context(&self, _: i32) -> Result<Handle> {
        self.handle("retain_context")
    }
    fn release_context(&self, _: i32) -> Result<()> {
        self.note("release_context").map(drop)
    }
    fn make_current(&self, _: Handle) -> Result<()> {
        self.note("make_current").map(drop)
    }
    fn memory(&self) -> Result<(u64, u64)> {
        self.note("memory").map(|_| (self.memory, self.memory))
    }
    fn allocate(&self, bytes: u64) -> Result<Address> {
        let mut record = self.note("allocate")?;
        record.handles += 1;
        let at = (record.handles as u64) << 32;
        record.blocks.insert(at, bytes);
        Ok(at)
    }
    fn free(&self, at: Address) -> Result<()> {
        self.note("free")?.blocks.remove(&at).expect("only what was allocated is freed");
        Ok(())
    }
    fn allocate_host(&self, bytes: usize) -> Result<*mut u8> {
        let mut record = self.note("allocate_host")?;
        let mut memory = vec![0u64; bytes.div_ceil(8)];
        let at = memory.as_mut_ptr();
        record.pinned.insert(at.addr(), memory);
        Ok(at.cast())
    }
    fn free_host(&self, at: *mut u8) -> Result<()> {
        self.note("free_host")?.pinned.remove(&at.addr()).expect("only what was allocated is freed");
        Ok(())
    }
    fn clear(&self, _: Address, _: u64, _: Handle) -> Result<()> {
        self.note("clear").map(drop)
    }
    fn upload(&self, _: Address, _: *const u8, _: u64, _: Handle) -> Result<()> {
        self.note("upload").map(drop)
    }
    fn download(&self, to: *mut u8, _: Address, bytes: u64, _: Handle) -> Result<()> {
        drop(self.note("download")?);
        // SAFETY: the engine gives room for as many bytes as it asks for.
        unsafe { to.write_bytes(0, bytes as usize) };
        Ok(())
    }
    fn copy(&self, _: Address, _: Address, _: u64, _: Handle) -> Result<()> {
        self.note("copy").map(drop)
    }
    fn create_stream(&self) -> Result<Handle> {
        self.handle("create_stream")
    }
    fn wait_stream(&self, _: Handle) -> Result<()> {
        self.note("wait_stream").map(drop)
    }
    fn destroy_stream(&self, _: Handle) -> Result<()> {
        self.note("destroy_stream").map(drop)
    }
    fn create_event(&self) -> Result<Handle> {
        let event = self.handle("create_event")?;
        self.record.lock().unwrap().events += 1;
        Ok(event)
    }
    fn record_event(&self, _: Handle, _: Handle) -> Result<()> {
        self.note("record_event").map(drop)
    }
    fn wait_event(&self, _: Handle) -> Result<()> {
        self.note("wait_event").map(drop)
    }
    fn destroy_event(&self, _: Handle) -> Result<()> {
        self.note("destroy_event").map(|mut record| record.events -= 1)
    }
    fn load_module(&self, image: &[u8]) -> Result<Handle> {
        assert_eq!(image.last(), Some(&0), "text ends in a zero");
        self.handle("load_module")
    }
    fn unload_module(&self, _: Handle) -> Result<()> {
        self.note("unload_module").map(drop)
    }
    fn function(&self, _: Handle, _: &CStr) -> Result<Handle> {
        self.handle("function")
    }
    fn allow_shared(&self, _: Handle, _: u32) -> Result<()> {
        self.note("allow_shared").map(drop)
    }
    fn describe(&self, _: Address, _: &Tiles) -> Result<Described> {
        self.note("describe").map(|_| [0; 16])
    }
    fn registers(&self, _: Handle) -> Result<u32> {
        self.note("registers").map(|_| 96)
    }
    fn prefer_shared(&self, _: Handle) -> Result<()> {
        self.note("prefer_shared").map(drop)
    }
    fn launch(&self, _: Handle, shape: Shape, arguments: &[&[u8]], _: Handle) -> Result<()> {
        assert!(!shape.grid.contains(&0) && !arguments.is_empty());
        self.note("launch").map(drop)
    }
    fn begin_capture(&self, _: Handle) -> Result<()> {
        self.note("begin_capture").map(drop)
    }
    fn end_capture(&self, _: Handle) -> Result<Handle> {
        let graph = self.handle("end_capture")?;
        self.record.lock().unwrap().graphs += 1;
        Ok(graph)
    }
    fn launch_graph(&self, _: Handle, _: Handle) -> Result<()> {
        self.note("launch_graph").map(drop)
    }
    fn destroy_graph(&self, _: Handle) -> Result<()> {
        self.note("destroy_graph").map(|mut record| record.graphs -= 1)
    }
}

mod tests {
    use std::alloc::{GlobalAlloc, Layout, System};
    use std::cell::Cell;

    use super::*;
    use crate::driver::Loaded;
    use crate::engine::{CudaEngine, CudaOptions};
    use mlxcel_engine::weights::WeightTensor;
    use mlxcel_engine::{Engine, EngineError, Feeds, WeightSource};
    use mlxcel_ir::{Bindings, Builder, DType, Graph, HostTensor, shape};

    /// Counts what each thread allocates.
    struct Counting;

    thread_local! {
        static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
    }

    // SAFETY: every call is passed on to the system allocator unchanged; the thread-local is a plain cell without a
    // destructor, so touching it allocates nothing.
    unsafe impl GlobalAlloc for Counting {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            ALLOCATIONS.set(ALLOCATIONS.get() + 1);
            // SAFETY: the caller's promises are those of `System`.
            unsafe { System.alloc(layout) }
        }
        unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
            // SAFETY: as above.
            unsafe { System.dealloc(pointer, layout) }
        }
    }

    #[global_allocator]
    static ALLOCATOR: Counting = Counting;

    struct Ones;

    impl WeightSource for Ones {
        fn tensor(&self, _: &str) -> std::result::Result<WeightTensor, EngineError> {
            Ok(WeightTensor::from_host(HostTensor::new(&[8, 8], &[1f32; 64])))
        }
    }

    /// A linear layer whose result is added to a state.
    fn layer() -> Graph {
        let b = Builder::new();
        let x = b.input("x", DType::F32, shape!["tokens", 8]);
        let w = b.weight("w", DType::F32, &[8, 8]);
        let total = b.state("total", DType::F32, shape!["slots", 8]);
        let y = x.linear(w, None);
        b.output("y", y);
        b.update("total", total + y.reduce(mlxcel_ir::ReduceOp::Sum, &[0]));
        b.finish().unwrap()
    }

    /// What the layer is fed.
    fn feeds(rows: usize) -> Feeds {
        let mut feeds = Feeds::new();
        feeds.insert("x", HostTensor::new(&[rows, 8], &vec![0.5f32; rows * 8]));
        feeds
    }

    /// Opens, compiles, runs three steps, copies a state, and lets go of everything.
    fn everything(driver: Fake) -> std::result::Result<(), EngineError> {
        let engine = CudaEngine::with_driver(Box::new(driver), CudaOptions::default())?;
        let dims = Bindings::from([("slots".to_string(), 1)]);
        let mut program = engine.compile(&layer(), &Ones, &dims)?;
        for _ in 0..3 {
            let ticket = program.submit(&feeds(1), &["y"])?;
            assert_eq!(program.collect(ticket)?[0].shape(), [1, 8]);
        }
        program.copy_state("slots", &[(0, 0)])
    }

    #[test]
    fn everything_that_was_taken_is_given_back() {
        let record = Shared::default();
        everything(Fake::new(&record)).unwrap();
        let record = record.lock().unwrap();
        assert!(record.blocks.is_empty() && record.pinned.is_empty());
        let count = |call: &str| record.calls.get(call).copied().unwrap_or(0);
        assert_eq!(count("create_event"), count("destroy_event"));
        assert_eq!((count("end_capture"), count("launch_graph")), (1, 2));
        assert_eq!((count("destroy_graph"), count("release_context")), (1, 1));
    }

    #[test]
    fn steps_alike_make_nothing_but_what_they_hand_over() {
        let record = Shared::default();
        let engine = CudaEngine::with_driver(Box::new(Fake::new(&record)), CudaOptions::default()).unwrap();
        let dims = Bindings::from([("slots".to_string(), 1)]);
        let mut program = engine.compile(&layer(), &Ones, &dims).unwrap();
        // Two at once, as when the next step is prepared while one runs.
        let (same, other) = (feeds(2), feeds(3));
        let counted = |program: &mut Box<dyn mlxcel_engine::Program>| {
            let before = ALLOCATIONS.get();
            let tickets = [(); 2].map(|()| program.submit(&same, &["y"]).unwrap());
            let submitted = ALLOCATIONS.get();
            let handed = tickets.map(|t| program.collect(t).unwrap());
            let collected = ALLOCATIONS.get();
            assert!(handed.iter().all(|h| h[0].shape() == [2, 8]));
            (submitted - before, collected - submitted)
        };
        counted(&mut program);
        counted(&mut program);
        let taken = || ["allocate", "allocate_host", "create_event"].map(|c| record.lock().unwrap().calls[c]);
        let before = taken();
        // Of each step the list, and of its one tensor the shape and the bytes.
        assert_eq!((counted(&mut program), taken()), ((0, 6), before));
        let ticket = program.submit(&other, &["y"]).unwrap();
        assert_eq!(program.collect(ticket).unwrap()[0].shape(), [3, 8]);
        assert_ne!(counted(&mut program).0, 0, "other shapes came between");
        assert_eq!(counted(&mut program), (0, 6));
    }

    #[test]
    fn every_call_that_fails_is_named_and_nothing_is_leaked() {
        let record = Shared::default();
        everything(Fake::new(&record)).unwrap();
        let calls: Vec<(&str, usize)> = record.lock().unwrap().calls.iter().map(|(c, n)| (*c, *n)).collect();
        assert!(calls.len() > 20, "{calls:?}");
        // Failing to let go of something is nobody's error.
        let letting_go = [
            "free",
            "free_host",
            "unload_module",
            "destroy_stream",
            "destroy_event",
            "destroy_graph",
            "release_context",
        ];
        for (call, times) in calls {
            for from in [1, times] {
                let record = Shared::default();
                let result = everything(Fake { fails: Some((call, from)), ..Fake::new(&record) });
                if letting_go.contains(&call) {
                    continue;
                }
                let error = result.err();
                let late = error.is_none() && from > 1;
                let named = error.as_ref().is_some_and(|e| e.to_string().contains(call));
                assert!(late || named, "{call} at {from}: {error:?}");
                let record = record.lock().unwrap();
                assert!(record.blocks.is_empty() && record.pinned.is_empty(), "{call} at {from} leaks");
                assert_eq!((record.events, record.graphs), (0, 0), "{call} at {from} leaks");
            }
        }
    }

    #[test]
    fn a_model_that_does_not_fit_is_refused_before_it_is_loaded() {
        let record = Shared::default();
        let driver = Box::new(Fake::new(&record));
        let engine =
            CudaEngine::with_driver(driver, CudaOptions { memory: Some(1000), ..CudaOptions::default() });
        let dims = Bindings::from([("slots".to_string(), 100)]);
        let refused = engine.unwrap().compile(&layer(), &Ones, &dims).err().unwrap();
        assert_eq!(
            refused.to_string(),
            "3456 bytes are needed for 256 bytes of weights and 3200 bytes of state, but 1000 of the 1000 bytes given to the \
             engine are free"
        );
        assert_eq!(record.lock().unwrap().calls.get("allocate"), None);
    }

    #[test]
    fn a_step_that_does_not_fit_fails_alone_and_the_next_one_runs() {
        let record = Shared::default();
        let options = CudaOptions { memory: Some(64 << 20), ..CudaOptions::default() };
        let engine = CudaEngine::with_driver(Box::new(Fake::new(&record)), options).unwrap();
        let dims = Bindings::from([("slots".to_string(), 1)]);
        let mut program = engine.compile(&layer(), &Ones, &dims).unwrap();
        for _ in 0..2 {
            let refused = program.submit(&feeds(4 << 20), &["y"]).unwrap_err().to_string();
            assert!(refused.contains("the working memory of a step"), "{refused}");
            let ticket = program.submit(&feeds(2), &["y"]).unwrap();
            assert_eq!(program.collect(ticket).unwrap()[0].shape(), [2, 8]);
        }
    }

    #[test]
    fn weights_are_told_of_until_all_have_come() {
        let record = Shared::default();
        let told = Arc::new(Mutex::new(vec![]));
        let hears = told.clone();
        let engine = CudaEngine::with_driver(Box::new(Fake::new(&record)), CudaOptions::default()).unwrap();
        let engine = engine.with_progress(Arc::new(move |sent, all| hears.lock().unwrap().push((sent, all))));
        let dims = Bindings::from([("slots".to_string(), 1)]);
        engine.compile(&layer(), &Ones, &dims).unwrap();
        assert_eq!(told.lock().unwrap().last(), Some(&(256, 256)));
    }

    #[test]
    fn what_is_missing_is_said_in_full() {
        let texts = [
            CudaError::NoDriver { library: "libcuda.so.1", reason: "not found".to_string() },
            CudaError::OldDriver { version: 12080 },
            CudaError::UnknownDevice { index: 2, count: 1 },
            CudaError::OldDevice { name: "Tesla V100".to_string(), capability: (7, 0) },
        ];
        let texts = texts.map(|e| e.to_string());
        assert_eq!(
            texts,
            [
                "there is no NVIDIA driver on this machine: libcuda.so.1 could not be loaded (not found); install the \
                 driver, or use another engine",
                "the NVIDIA driver is too old: it supports CUDA 12.8; install a driver for CUDA 13.0 or later (580 and up)",
                "there is no CUDA device 2: the driver finds 1",
                "Tesla V100 has compute capability 7.0: the engine needs 8.0 or later",
            ]
        );
    }

    #[test]
    fn a_library_that_is_not_there_is_no_driver() {
        let error = Loaded::open_named("libno-such-driver.so").err().unwrap();
        assert!(matches!(error, CudaError::NoDriver { library: "libno-such-driver.so", .. }), "{error}");
    }

    #[test]
    fn an_old_device_is_refused() {
        let record = Shared::default();
        let driver = Box::new(Fake { capability: (7, 5), ..Fake::new(&record) });
        let error = CudaEngine::with_driver(driver, CudaOptions::default()).err().unwrap();
        assert!(matches!(error, CudaError::OldDevice { capability: (7, 5), .. }));
    }
}
