//! The part of PJRT's C interface that is used, written after its header (`pjrt_c_api.h`, version 0.81). Structures
//! only grow at their end, and each says how long the caller thinks it is, so that these serve newer plugins too.
//!
//! <https://github.com/openxla/xla/blob/main/xla/pjrt/c/pjrt_c_api.h>

use std::ffi::{c_char, c_int, c_void};

/// What the layouts below were written after, and the oldest that has all of them.
pub const OURS: &str = "0.81";
pub const MINOR_LEAST: i32 = 54;

pub enum Error {}
pub enum Event {}
pub enum Client {}
pub enum Device {}
pub enum Executable {}
pub enum LoadedExecutable {}
pub enum Buffer {}

/// Every function takes a structure of arguments and returns an error or null.
pub type Function = unsafe extern "C" fn(*mut c_void) -> *mut Error;

/// The table of functions.
#[repr(C)]
pub struct Api {
    pub struct_size: usize,
    pub extension_start: *mut c_void,
    pub version: Version,
    pub functions: [Option<Function>; FUNCTIONS],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Version {
    pub struct_size: usize,
    pub extension_start: *mut c_void,
    pub major: c_int,
    pub minor: c_int,
}

/// Places in the table, up to the last that is used.
pub const FUNCTIONS: usize = 73;
pub const ERROR_DESTROY: usize = 0;
pub const ERROR_MESSAGE: usize = 1;
pub const PLUGIN_INITIALIZE: usize = 3;
pub const PLUGIN_ATTRIBUTES: usize = 4;
pub const EVENT_DESTROY: usize = 5;
pub const EVENT_AWAIT: usize = 8;
pub const CLIENT_CREATE: usize = 10;
pub const CLIENT_DESTROY: usize = 11;
pub const CLIENT_PLATFORM_NAME: usize = 12;
pub const CLIENT_PLATFORM_VERSION: usize = 14;
pub const CLIENT_ADDRESSABLE_DEVICES: usize = 16;
pub const CLIENT_COMPILE: usize = 20;
pub const CLIENT_BUFFER_FROM_HOST: usize = 22;
pub const DESCRIPTION_KIND: usize = 26;
pub const DEVICE_GET_DESCRIPTION: usize = 29;
pub const DEVICE_MEMORY_STATS: usize = 34;
pub const EXECUTABLE_DESTROY: usize = 40;
pub const EXECUTABLE_NUM_OUTPUTS: usize = 44;
pub const EXECUTABLE_SERIALIZE: usize = 49;
pub const LOADED_DESTROY: usize = 50;
pub const LOADED_GET_EXECUTABLE: usize = 51;
pub const LOADED_EXECUTE: usize = 55;
pub const DESERIALIZE_AND_LOAD: usize = 56;
pub const BUFFER_DESTROY: usize = 58;
pub const BUFFER_TO_HOST: usize = 70;

/// A structure of arguments; the macro gives it the head that all of them have.
macro_rules! arguments {
    ($($name:ident { $($field:ident: $ty:ty),* $(,)? })*) => {$(
        #[repr(C)]
        pub struct $name {
            pub struct_size: usize,
            pub extension_start: *mut c_void,
            $(pub $field: $ty,)*
        }

        impl $name {
            /// Zeros everywhere, which is null and none, but for the size.
            #[allow(unsafe_code)]
            pub fn new() -> Self {
                // SAFETY: every field is a number, a pointer, or an optional function, for which zero is a value.
                let mut arguments: Self = unsafe { std::mem::zeroed() };
                arguments.struct_size = size_of::<Self>();
                arguments
            }
        }
    )*};
}

arguments! {
    ErrorDestroy { error: *mut Error }
    ErrorMessage { error: *const Error, message: *const c_char, message_size: usize }
    PluginInitialize {}
    PluginAttributes { attributes: *const NamedValue, num_attributes: usize }
    EventCall { event: *mut Event }
    ClientCreate {
        create_options: *const NamedValue,
        num_options: usize,
        kv_get_callback: *mut c_void,
        kv_get_user_arg: *mut c_void,
        kv_put_callback: *mut c_void,
        kv_put_user_arg: *mut c_void,
        client: *mut Client,
        kv_try_get_callback: *mut c_void,
        kv_try_get_user_arg: *mut c_void,
    }
    ClientDestroy { client: *mut Client }
    ClientText { client: *mut Client, text: *const c_char, text_size: usize }
    AddressableDevices { client: *mut Client, devices: *const *mut Device, num_devices: usize }
    GetDescription { device: *mut Device, description: *mut c_void }
    MemoryStats {
        device: *mut Device,
        in_use: i64,
        peak_in_use: MaybeBytes,
        allocations: MaybeBytes,
        largest_allocation: MaybeBytes,
        limit: MaybeBytes,
        reserved: MaybeBytes,
        peak_reserved: MaybeBytes,
        reservable: MaybeBytes,
        largest_free: MaybeBytes,
        pool: MaybeBytes,
        peak_pool: MaybeBytes,
    }
    DescriptionKind { description: *mut c_void, kind: *const c_char, kind_size: usize }
    Program { code: *mut c_char, code_size: usize, format: *const c_char, format_size: usize }
    Compile {
        client: *mut Client,
        program: *const Program,
        compile_options: *const c_char,
        compile_options_size: usize,
        executable: *mut LoadedExecutable,
    }
    BufferFromHost {
        client: *mut Client,
        data: *const c_void,
        kind: c_int,
        dims: *const i64,
        num_dims: usize,
        byte_strides: *const i64,
        num_byte_strides: usize,
        semantics: c_int,
        device: *mut Device,
        memory: *mut c_void,
        device_layout: *mut c_void,
        done_with_host_buffer: *mut Event,
        buffer: *mut Buffer,
    }
    Serialize {
        executable: *const Executable,
        bytes: *const c_char,
        bytes_size: usize,
        serialized: *mut c_void,
        deleter: Option<unsafe extern "C" fn(*mut c_void)>,
    }
    Deserialize {
        client: *mut Client,
        bytes: *const c_char,
        bytes_size: usize,
        executable: *mut LoadedExecutable,
        overridden_options: *const c_char,
        overridden_options_size: usize,
    }
    LoadedCall { executable: *mut LoadedExecutable }
    GetExecutable { loaded: *mut LoadedExecutable, executable: *mut Executable }
    ExecutableCall { executable: *mut Executable }
    NumOutputs { executable: *mut Executable, num_outputs: usize }
    ExecuteOptions {
        send_callbacks: *mut c_void,
        recv_callbacks: *mut c_void,
        num_send_ops: usize,
        num_recv_ops: usize,
        launch_id: c_int,
        non_donatable_input_indices: *const i64,
        num_non_donatable_input_indices: usize,
        context: *mut c_void,
        call_location: *const c_char,
        num_tasks: usize,
        task_ids: *mut c_int,
        incarnation_ids: *mut i64,
    }
    Execute {
        executable: *mut LoadedExecutable,
        options: *mut ExecuteOptions,
        argument_lists: *const *const *mut Buffer,
        num_devices: usize,
        num_args: usize,
        output_lists: *const *mut *mut Buffer,
        device_complete_events: *mut *mut Event,
        execute_device: *mut Device,
    }
    BufferCall { buffer: *mut Buffer }
    BufferToHost {
        buffer: *mut Buffer,
        host_layout: *mut c_void,
        to: *mut c_void,
        to_size: usize,
        event: *mut Event,
    }
    NamedValue {
        name: *const c_char,
        name_size: usize,
        kind: c_int,
        value: u64,
        value_size: usize,
    }
}

/// A number, and whether the plugin knows it.
#[repr(C)]
pub struct MaybeBytes {
    pub bytes: i64,
    pub is_known: u8,
}

/// Kinds of named values.
pub const VALUE_INT64_LIST: c_int = 2;
pub const VALUE_FLOAT: c_int = 3;
pub const VALUE_BOOL: c_int = 4;

/// The bytes are read before the call returns.
pub const IMMUTABLE_ONLY_DURING_CALL: c_int = 0;
/// The bytes are read until the transfer is complete.
pub const IMMUTABLE_UNTIL_TRANSFER_COMPLETES: c_int = 1;
/// The bytes belong to the caller and stay as they are until the buffer is gone.
pub const IMMUTABLE_ZERO_COPY: c_int = 2;
