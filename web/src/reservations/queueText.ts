/** The queue of `gpudeck wait` in words. Pure. */
import type { GpuRequest, QueuePosition } from '../api/queue'
import { bytes, count, duration, plain } from '../ui/format'

export interface QueueRow {
  id: number
  /** `1`, or `starting` once it is granted. */
  position: string
  user: string
  wanted: string
  /** For how long they wait. */
  since: string
  /** What is in the way, or which GPUs were granted. */
  note: string
}

/** `2 GPUs called H100 with 40 GiB on one host`. */
export function wantedText({ gpus, memory_bytes: memory, model, host, same_host: isSameHost, mig, allow_mig: mayMig }: GpuRequest): string {
  const noun = mig ? 'MIG slice' : mayMig ? 'GPU or MIG slice' : 'GPU'
  const place = host ? ` on ${host}` : isSameHost && gpus > 1 ? ' on one host' : ''
  return plain(`${count(gpus, noun)}${model ? ` called ${model}` : ''}${memory ? ` with ${bytes(memory)}` : ''}${place}`)
}

/** `now` is the hub's clock. `users`: only theirs; null: all. */
export function queueRows(requests: readonly QueuePosition[], now: number, users: readonly string[] | null = null): QueueRow[] {
  return requests
    .filter(({ user }) => users === null || users.includes(user))
    .map((one) => ({
      id: one.id,
      position: one.position === null ? 'starting' : String(one.position),
      user: plain(one.user),
      wanted: wantedText(one.wanted),
      since: duration(Math.max(0, now - one.created_at)),
      note: plain(one.granted ? `granted: ${one.granted.gpus.map(({ host, label }) => `${host}:${label}`).join(', ')}` : (one.impossible ?? one.reason ?? '')),
    }))
}
