;; Lets every third event through, unchanged. Saves its counter, so that it goes on exactly
;; where it was when the subscription moves to another broker.
(module
  (memory (export "memory") 1)
  (global $next (mut i32) (i32.const 16))
  (global $count (mut i32) (i32.const 0))

  ;; Gives `size` bytes for one call; the next call starts again.
  (func (export "alloc") (param $size i32) (result i32)
    (local $end i32)
    (global.set $next (i32.const 16))
    (local.set $end (i32.add (global.get $next) (local.get $size)))
    (if (i32.gt_u (local.get $end) (i32.mul (memory.size) (i32.const 65536)))
      (then
        (drop (memory.grow (i32.add
          (i32.shr_u (local.get $size) (i32.const 16)) (i32.const 1))))))
    (global.get $next))

  (func (export "run") (param $time i64) (param $at i32) (param $size i32) (result i64)
    (global.set $count (i32.add (global.get $count) (i32.const 1)))
    (if (i32.rem_u (global.get $count) (i32.const 3))
      (then (return (i64.const 0))))
    (i64.or
      (i64.shl (i64.extend_i32_u (local.get $at)) (i64.const 32))
      (i64.extend_i32_u (local.get $size))))

  (func (export "save") (result i64)
    (i32.store (i32.const 8) (global.get $count))
    (i64.const 0x0000000800000004))

  (func (export "load") (param $at i32) (param $size i32)
    (global.set $count (i32.load (local.get $at)))))
