;; Lets an event through if its number is the highest so far, without any further bytes: the data
;; begin with a 64-bit float, least significant byte first. Data of up to 255 bytes.
;; An event is [data, context]: 0x92, 0xc4, length, data, context.
(module
  (memory (export "memory") 1)
  (global $highest (mut f64) (f64.const -inf))

  (func (export "alloc") (param $size i32) (result i32)
    (if (i32.gt_u (i32.add (local.get $size) (i32.const 32))
                  (i32.mul (memory.size) (i32.const 65536)))
      (then
        (drop (memory.grow (i32.add
          (i32.shr_u (local.get $size) (i32.const 16)) (i32.const 1))))))
    (i32.const 32))

  (func (export "run") (param $time i64) (param $at i32) (param $size i32) (result i64)
    (local $length i32)
    (local $value f64)
    ;; Not our format: nothing goes through.
    (if (i32.ne (i32.load16_u (local.get $at)) (i32.const 0xc492))
      (then (return (i64.const 0))))
    (local.set $length (i32.load8_u offset=2 (local.get $at)))
    (if (i32.lt_u (local.get $length) (i32.const 8))
      (then (return (i64.const 0))))
    (local.set $value (f64.load offset=3 (local.get $at)))
    (if (i32.eqz (f64.gt (local.get $value) (global.get $highest)))
      (then (return (i64.const 0))))
    (global.set $highest (local.get $value))
    ;; Shorten the data to the number: move the context up behind it.
    (i32.store8 offset=2 (local.get $at) (i32.const 8))
    (memory.copy
      (i32.add (local.get $at) (i32.const 11))
      (i32.add (i32.add (local.get $at) (i32.const 3)) (local.get $length))
      (i32.sub (i32.sub (local.get $size) (i32.const 3)) (local.get $length)))
    (i64.or
      (i64.shl (i64.extend_i32_u (local.get $at)) (i64.const 32))
      (i64.extend_i32_u (i32.sub (local.get $size)
        (i32.sub (local.get $length) (i32.const 8))))))

  (func (export "save") (result i64)
    (f64.store (i32.const 8) (global.get $highest))
    (i64.const 0x0000000800000008))

  (func (export "load") (param $at i32) (param $size i32)
    (global.set $highest (f64.load (local.get $at)))))
