/** What a scheduler says of a GPU, in words. */
import type { Gpu } from '../api/types'
import { clockTime, count, plain } from '../ui/format'

type Allocation = NonNullable<Gpu['allocation']>

/** `now` is the hub's clock. */
export function allocationText(found: Allocation, now: number): string {
  const { job, name, user, until } = found
  if (!job) return `allocated by ${plain(found.scheduler)}: ${plain(found.unknown ?? 'the job is not known')}`
  const whose = user ? ` (${plain(user)})` : ''
  const title = name ? `, ${plain(name)}` : ''
  const end = until ? `, until ${clockTime(until, now)}` : ''
  const others = found.shared_with?.length ?? 0
  const shared = others === 0 ? '' : `, shared with ${count(others, 'other pod')}`
  const conflict = found.conflict ? `. ${plain(found.conflict)}` : ''
  return `${found.pod ? 'pod' : 'job'} ${plain(job)}${whose}${title}${found.is_suspended ? ', suspended' : ''}${shared}${end}${conflict}`
}
