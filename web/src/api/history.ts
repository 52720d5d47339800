/** Questions about the past. */
import { request, type Answer } from './request'
import type { components } from './schema'

type Schemas = components['schemas']

/** Unix seconds. */
export interface Bounds {
  start: number
  end: number
}

export type Past = Schemas['Answer']
export type PastSeries = Schemas['Series']
/** When the step begins, its mean, the smallest and the largest value. Null: nobody knows. */
export type Point = PastSeries['points'][number]
export type HeatMap = Schemas['Heat']
export type Run = Schemas['Run']
export type Runs = Schemas['Runs']
export type RunVerdict = Schemas['RunVerdict']

/** Whose past, and what of it: one of the first five. */
export interface Question {
  gpu?: string
  host?: string
  user?: string
  run?: number
  fleet?: true
  metric: string
  by?: 'gpu' | 'user'
  points?: number
}

/** Of an answer where the question names no number. */
export const POINTS = 500
const TIMEOUT_MS = 30_000

const inSeconds = ({ start, end }: Bounds): Bounds => ({ start: Math.round(start), end: Math.round(end) })

export function readHistory(question: Question, bounds: Bounds, signal?: AbortSignal): Promise<Answer<Past>> {
  return request('get', '/api/v1/history', { query: { points: POINTS, ...question, ...inSeconds(bounds) }, timeoutMs: TIMEOUT_MS, signal })
}

export interface RunsQuestion {
  gpu?: string
  host?: string
  user?: string
  start?: number
  end?: number
  now?: true
  limit?: number
  before?: number
  verdict?: true
}

export function readRuns(question: RunsQuestion, signal?: AbortSignal): Promise<Answer<Runs>> {
  return request('get', '/api/v1/runs', { query: question, timeoutMs: TIMEOUT_MS, signal })
}
