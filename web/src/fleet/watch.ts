/** The form behind "Notify me": its fields, its errors, and the state of a watch as text. Pure. */
import type { NewWatch, Watch } from '../api/watches'
import { count, duration } from '../ui/format'

export interface WatchDraft {
  gpus: string
  memory: string
  model: string
  sameHost: boolean
  mig: boolean
  days: number
}

export type WatchMistakes = Partial<Record<'gpus' | 'memory', string>>

const MOST_GPUS = 1024
const DAY = 86_400
const MINUTE = 60
const MEMORY = /^(\d{1,6}(?:\.\d{1,3})?) ?([mgt])i?b?$/i

/** How long it counts: days. */
export const SPANS: readonly (readonly [string, number])[] = [
  ['a day', 1],
  ['a week', 7],
  ['30 days', 30],
]

export const noWatch = (): WatchDraft => ({ gpus: '1', memory: '', model: '', sameHost: false, mig: false, days: 7 })

/** G is GiB, as everywhere; null for what is no amount. */
export function readBytes(text: string): number | null {
  const [, number, unit = ''] = MEMORY.exec(text.trim()) ?? []
  if (number === undefined) return null
  const power = 'kmgt'.indexOf(unit.toLowerCase()) + 1
  return Math.round(Number(number) * 1024 ** power)
}

export function watchMistakes({ gpus, memory }: WatchDraft): WatchMistakes {
  const wanted = Number(gpus)
  return {
    ...(/^\d+$/.test(gpus.trim()) && wanted >= 1 && wanted <= MOST_GPUS ? {} : { gpus: `Enter a number from 1 to ${MOST_GPUS}.` }),
    ...(memory.trim() === '' || readBytes(memory) !== null ? {} : { memory: 'Enter an amount with a unit, such as 40G.' }),
  }
}

/** For a draft without mistakes. */
export function watchOf({ gpus, memory, model, sameHost, mig, days }: WatchDraft): NewWatch {
  const bytes = readBytes(memory)
  return {
    gpus: Number(gpus),
    same_host: sameHost,
    expire_seconds: days * DAY,
    ...(mig ? { mig } : {}),
    ...(bytes === null ? {} : { memory_bytes: bytes }),
    ...(model.trim() === '' ? {} : { model: model.trim() }),
  }
}

/** The same once more, for what is left of its time; null where it has ended or has notified. */
export function watchAgain({ wanted, expires_at, fired_at }: Watch, now: number): NewWatch | null {
  const left = Math.floor(expires_at - now)
  if (fired_at != null || left < MINUTE) return null
  const { near: _, ...request } = wanted
  return { ...request, expire_seconds: left }
}

/** What became of it, in words. */
export function watchState(watch: Watch, now: number): string {
  if (watch.fired_at === null || watch.fired_at === undefined) return `active for another ${duration(Math.max(0, watch.expires_at - now))}`
  const hosts = new Set(watch.found.map(({ host }) => host))
  return `notified ${duration(Math.max(0, now - watch.fired_at))} ago: ${[...hosts].slice(0, 3).join(', ')}${hosts.size > 3 ? ` and ${count(hosts.size - 3, 'host')} more` : ''}`
}
