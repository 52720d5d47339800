/** What somebody fills in to be told when GPUs are free, what is wrong with it, and what is shown of a watch. Pure. */
import type { NewWatch, Watch } from '../api/watches'
import { count, duration } from './format'

export interface WatchDraft {
  gpus: string
  memory: string
  model: string
  sameHost: boolean
  days: number
}

export type WatchMistakes = Partial<Record<'gpus' | 'memory', string>>

const MOST_GPUS = 1024
const DAY = 86_400
const MEMORY = /^(\d{1,6}(?:\.\d{1,3})?) ?([mgt])(i?)b?$/i

/** How long it counts: days. */
export const SPANS: readonly (readonly [string, number])[] = [
  ['a day', 1],
  ['a week', 7],
  ['30 days', 30],
]

export const noWatch = (): WatchDraft => ({ gpus: '1', memory: '', model: '', sameHost: false, days: 7 })

/** G is 10^9 bytes, GiB is 2^30, as everywhere; null for what is no amount. */
export function readBytes(text: string): number | null {
  const [, number, unit = '', binary] = MEMORY.exec(text.trim()) ?? []
  if (number === undefined) return null
  const power = 'kmgt'.indexOf(unit.toLowerCase()) + 1
  return Math.round(Number(number) * (binary ? 1024 : 1000) ** power)
}

export function watchMistakes({ gpus, memory }: WatchDraft): WatchMistakes {
  const wanted = Number(gpus)
  return {
    ...(/^\d+$/.test(gpus.trim()) && wanted >= 1 && wanted <= MOST_GPUS ? {} : { gpus: `A number between 1 and ${MOST_GPUS}.` }),
    ...(memory.trim() === '' || readBytes(memory) !== null ? {} : { memory: 'An amount such as 40G or 37GiB.' }),
  }
}

/** For a draft without mistakes. */
export function watchOf({ gpus, memory, model, sameHost, days }: WatchDraft): NewWatch {
  const bytes = readBytes(memory)
  return {
    gpus: Number(gpus),
    same_host: sameHost,
    expire_seconds: days * DAY,
    ...(bytes === null ? {} : { memory_bytes: bytes }),
    ...(model.trim() === '' ? {} : { model: model.trim() }),
  }
}

/** What became of it, in words. */
export function watchState(watch: Watch, now: number): string {
  if (watch.fired_at === null || watch.fired_at === undefined) return `for ${duration(Math.max(0, watch.expires_at - now))}`
  const hosts = new Set(watch.found.map(({ host }) => host))
  return `told ${duration(Math.max(0, now - watch.fired_at))} ago: ${[...hosts].slice(0, 3).join(', ')}${hosts.size > 3 ? ` and ${count(hosts.size - 3, 'host')} more` : ''}`
}
