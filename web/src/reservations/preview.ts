/** What a new reservation would take, in words: which GPUs, who is on them now, and what else is reserved there then. */
import type { PreviewedGpu, ReservationPreview } from '../api/reservations'
import type { Availability } from '../api/types'
import { count, gib, plain } from '../ui/format'
import { conflictText, gpusText } from './texts'
import { lengthText, spanText, timeText } from './times'

export interface PreviewRow {
  uuid: string
  state: Availability
  /** `gpu07: 0` */
  name: string
  model: string
  /** Who is on it now. */
  use: string
  isTaken: boolean
}

export interface PreviewText {
  /** `4 GPUs on gpu07` */
  title: string
  /** `Nov 18, 00:00 – Nov 19, 00:00 (1d)` */
  time: string
  rows: PreviewRow[]
  /** How many of them are not free now; empty where all are. */
  inUse: string
  /** The same, and what that means. */
  warning: string | null
  beside: { id: number; text: string }[]
  /** Where nothing else is reserved, or not all of it is listed. */
  besideNote: string | null
}

export function previewText({ gpus, reservations, is_cut, start, end }: ReservationPreview, now: number): PreviewText {
  const hosts = [...new Set(gpus.map(({ host }) => host))]
  const place = hosts.length === 1 ? plain(hosts[0] ?? '') : count(hosts.length, 'host')
  const rows = gpus.map((gpu) => previewRow(gpu, now))
  const taken = rows.filter(({ isTaken }) => isTaken).length
  const startsLater = start > now
  const inUse = taken === 0 ? '' : `${taken === gpus.length ? (taken === 1 ? 'It is' : 'All are') : `${taken} of ${gpus.length} ${taken === 1 ? 'is' : 'are'}`} in use now.`
  return {
    title: `${count(gpus.length, gpus.every(isSlice) ? 'MIG slice' : 'GPU')} on ${place}`,
    time: `${spanText(start, end, now)} (${lengthText(end - start)})`,
    rows,
    inUse,
    warning: taken === 0 ? null : `${inUse} gpudeck does not stop processes${startsLater ? ' when the reservation starts' : ''}.`,
    beside: reservations.map((each) => ({ id: each.id, text: conflictText(each, now) })),
    besideNote: reservations.length === 0 ? `Nothing else is reserved on ${hosts.length === 1 ? place : 'these hosts'} in this time.` : is_cut ? 'and more' : null,
  }
}

const isSlice = ({ label }: PreviewedGpu): boolean => label.includes('.')

function previewRow(gpu: PreviewedGpu, now: number): PreviewRow {
  const memory = gpu.memory_total_bytes === null ? 'memory unknown' : `${gib(gpu.memory_total_bytes)} GiB`
  return {
    uuid: gpu.uuid,
    state: gpu.availability,
    name: gpusText([{ ...gpu, is_there: true }]),
    model: `${plain(gpu.display_name)} · ${memory}`,
    use: useText(gpu, now),
    isTaken: gpu.availability === 'busy' || gpu.availability === 'idle' || gpu.availability === 'allocated',
  }
}

function useText({ availability, users, reservation }: PreviewedGpu, now: number): string {
  const reserved = reservation === null ? '' : `${reservation.kind === 'claim' ? 'claimed' : 'reserved'} by ${plain(reservation.user)} until ${timeText(reservation.until, now)}`
  if (availability === 'free') return 'free now'
  if (availability === 'unknown') return 'state unknown'
  if (availability === 'allocated') return 'allocated to a job now'
  if (availability === 'reserved') return reserved === '' ? 'reserved now' : `now ${reserved}`
  const who = users === null || users.length === 0 ? ', user unknown' : ` by ${plain(users.join(', '))}`
  return `in use now${who}${availability === 'idle' ? ', idle' : ''}${reserved === '' ? '' : `; ${reserved}`}`
}
