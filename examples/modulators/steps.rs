//! Lets an event through if its number has moved by at least a step since the last one that passed.
//!
//! The data of an event begin with a 64-bit float, least significant byte first; the setting is the
//! step, in the same form, 1 without one. Everything later answers depend on is `LAST`.
//!
//! rustc --edition 2021 -O -C panic=abort -C strip=symbols --crate-type cdylib \
//!     --target wasm32-unknown-unknown steps.rs -o steps.wasm
#![no_std]

use core::ptr::addr_of_mut;

const ROOM: usize = 1 << 21;
static mut INPUT: [u8; ROOM] = [0; ROOM];
static mut SAVED: [u8; 8] = [0; 8];
static mut STEP: f64 = 1.0;
/// Not a number until an event has passed.
static mut LAST: f64 = f64::NAN;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    core::arch::wasm32::unreachable()
}

/// Gives room for what is passed next; beyond it the call ends with a trap, and says so.
#[no_mangle]
pub extern "C" fn alloc(size: usize) -> *mut u8 {
    assert!(size <= ROOM);
    unsafe { addr_of_mut!(INPUT) as *mut u8 }
}

/// Reads a float at the beginning of some bytes.
fn number(bytes: &[u8]) -> Option<f64> {
    let first: [u8; 8] = bytes.get(..8)?.try_into().ok()?;
    Some(f64::from_le_bytes(first))
}

/// Finds the data of an event, which is MessagePack: an array of the data and the context.
fn data(event: &[u8]) -> Option<&[u8]> {
    let (at, size) = match event {
        [0x92, 0xc4, size, ..] => (3, usize::from(*size)),
        [0x92, 0xc5, high, low, ..] => (4, usize::from(u16::from_be_bytes([*high, *low]))),
        [0x92, 0xc6, a, b, c, d, ..] => (6, u32::from_be_bytes([*a, *b, *c, *d]) as usize),
        _ => return None,
    };
    event.get(at..)?.get(..size)
}

unsafe fn given<'a>(at: *const u8, size: usize) -> &'a [u8] {
    core::slice::from_raw_parts(at, size)
}

#[no_mangle]
pub unsafe extern "C" fn init(at: *const u8, size: usize) {
    STEP = number(given(at, size)).unwrap_or(1.0);
}

#[no_mangle]
pub unsafe extern "C" fn run(_time: i64, at: *const u8, size: usize) -> u64 {
    let value = match data(given(at, size)).and_then(number) {
        Some(value) => value,
        None => return 0,
    };
    let moved = value - LAST;
    if moved < STEP && -moved < STEP {
        return 0;
    }
    LAST = value;
    (at as u64) << 32 | size as u64
}

#[no_mangle]
pub unsafe extern "C" fn save() -> u64 {
    let saved = addr_of_mut!(SAVED);
    *saved = LAST.to_le_bytes();
    (saved as u64) << 32 | 8
}

#[no_mangle]
pub unsafe extern "C" fn load(at: *const u8, size: usize) {
    LAST = number(given(at, size)).unwrap_or(f64::NAN);
}
