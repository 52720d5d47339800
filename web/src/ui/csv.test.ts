import { expect, test } from 'vitest'
import { fileName, writeCsv } from './csv'

test('a text that looks like a formula is none, as in the CSV of the hub', () => {
  expect(writeCsv([['=1+1', '+x', '-x', '@x', ' =x']])).toBe("'=1+1,'+x,'-x,'@x,' =x\r\n")
})

test('numbers stay numbers, unknown is empty', () => {
  expect(writeCsv([[-3, 0.5, NaN, null, undefined, '-3', '-3.5']])).toBe('-3,0.5,,,,-3,-3.5\r\n')
})

test('commas and quotes are quoted, line breaks are blanks', () => {
  expect(writeCsv([['a,b', 'say "x"', 'one\ntwo'], ['é']])).toBe('"a,b","say ""x""",one two\r\né\r\n')
})

test('characters that cannot be seen do nothing', () => {
  expect(writeCsv([['a\u202eb\u0007']])).toBe('a\ufffdb\ufffd\r\n')
})

test('a file is named after what is in it', () => {
  expect([fileName('GPUs by state', 'csv'), fileName('../..', 'png'), fileName('Лаб 1', 'csv')]).toEqual(['gpus-by-state.csv', 'gpudeck.png', 'лаб-1.csv'])
})
