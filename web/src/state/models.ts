/** GPU models in the words people use: "NVIDIA A100-SXM4-80GB" is an A100. */
import type { Gpu } from '../api/types'
import { gib } from './format'

const NOISE = /\b(nvidia|geforce|tesla|quadro|amd|instinct|radeon|intel|data center gpu|generation|graphics)\b/gi
const PACKAGING = /[- ](sxm\d?|pcie|nvl|hbm\d\w?|\d+\s?gb)(?=[- ]|$)/gi
const PROFILE = /\d+g\.\d+gb/i
const known = new Map<string, string>()

/** The name without vendor, packaging and memory size; the whole name where nothing would be left. */
export function shortModel(name: string): string {
  let short = known.get(name)
  if (short === undefined) {
    const bare = name.replace(NOISE, ' ').replace(/\s+/g, ' ').trim()
    short = bare.replace(PACKAGING, '').replace(PACKAGING, '').trim() || name
    known.set(name, short)
  }
  return short
}

/** What a host carries: `8× H200 141G`, `4× A100 80G + 2× V100 32G`. */
export function inventory(gpus: readonly Gpu[]): string {
  const counts = new Map<string, number>()
  const sizes = new Map(gpus.filter((gpu) => gpu.memory_total_bytes !== null).map((gpu) => [gpu.name, gpu.memory_total_bytes]))
  for (const gpu of gpus) {
    // A GPU that cannot be read is most likely as large as its sisters; a MIG profile names its size by itself.
    const bytes = gpu.memory_total_bytes ?? sizes.get(gpu.name) ?? null
    const kind = shortModel(gpu.name) + (bytes === null || PROFILE.test(gpu.name) ? '' : ` ${gib(bytes)}G`)
    counts.set(kind, (counts.get(kind) ?? 0) + 1)
  }
  return [...counts].map(([kind, n]) => `${n}× ${kind}`).join(' + ')
}
