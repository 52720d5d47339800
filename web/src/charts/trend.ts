/** What a tiny line says, in words: for the pointer, and for whoever cannot see it. */
import type { Past } from '../api/history'

export function trendText(name: string, past: Past | null, span = 'the last 24 hours'): string {
  const means = (past?.series[0]?.points ?? []).flatMap(([, mean]) => (mean === null ? [] : [mean]))
  if (means.length === 0) return past === null ? `${name}: loading` : `${name}: no data for ${span}`
  const unit = past?.unit === 'percent' ? ' %' : ''
  const show = (value: number): string => `${Math.round(value)}${unit}`
  const mean = means.reduce((sum, value) => sum + value, 0) / means.length
  return `${name}, ${span}: average ${show(mean)}, range ${show(Math.min(...means))} to ${show(Math.max(...means))}`
}
