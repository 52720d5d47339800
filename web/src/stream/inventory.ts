/** What a host carries, in the hub's short names of its GPUs. */
import type { Gpu } from '../api/types'
import { gib } from '../ui/format'

/** A name that tells the size already: A100-SXM4-80GB, H100 MIG 1g.10gb. */
const SIZED = /\d\s?gb?\b/i

/** `8× H200 141G`, `4× A100-SXM4-80GB + 2× RTX 4090 24G`. */
export function inventory(gpus: readonly Gpu[]): string {
  const counts = new Map<string, number>()
  const sizes = new Map(gpus.filter((gpu) => gpu.memory_total_bytes !== null).map((gpu) => [gpu.name, gpu.memory_total_bytes]))
  for (const gpu of gpus) {
    // A GPU that cannot be read is most likely as large as its sisters.
    const bytes = gpu.memory_total_bytes ?? sizes.get(gpu.name) ?? null
    const kind = gpu.display_name + (bytes === null || SIZED.test(gpu.display_name) ? '' : ` ${gib(bytes)}G`)
    counts.set(kind, (counts.get(kind) ?? 0) + 1)
  }
  return [...counts].map(([kind, n]) => `${n}× ${kind}`).join(' + ')
}
